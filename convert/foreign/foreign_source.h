// A checkpoint of another system that is open.
#pragma once

#include <string>

#include "ckpt/model/source.h"

namespace cairn {

struct StoredCatalog;

class ForeignSource : public CheckpointSource {
 public:
  // What messages call it, where that is not the directory.
  virtual void SetName(std::string name) = 0;
  virtual void AddHistory(std::string entry) = 0;
  // Where everything lies (stored_source.h), or null where values are made of several files.
  virtual const StoredCatalog* stored() const { return nullptr; }
};

}  // namespace cairn
