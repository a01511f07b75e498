// A checkpoint of another system that is open.
#pragma once

#include <string>

#include "ckpt/model/source.h"

namespace cairn {

class ForeignSource : public CheckpointSource {
 public:
  // What messages call it, where that is not the directory.
  virtual void SetName(std::string name) = 0;
  virtual void AddHistory(std::string entry) = 0;
};

}  // namespace cairn
