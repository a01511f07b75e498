// A checkpoint of another system that is open.
#pragma once

#include <string>

#include "ckpt/model/source.h"
#include "convert/torch/record_sums.h"

namespace cairn {

struct StoredCatalog;

class ForeignSource : public CheckpointSource {
 public:
  // The name for messages, if it is not the directory.
  virtual void SetName(std::string name) = 0;
  virtual void AddHistory(std::string entry) = 0;
  // Compares records with their CRC-32 as they are read from now on; CheckRead() reports. Returns false, and
  // does nothing, if values are made of several files.
  virtual bool CheckRecords(std::vector<SummedRecord> /*records*/) { return false; }
  // Where everything lies (stored_source.h); null if values are made of several files.
  virtual const StoredCatalog* stored() const { return nullptr; }
};

}  // namespace cairn
