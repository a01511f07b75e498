// The two files of an indexed dataset that fits in memory: for checks and tests. `cairn data` writes large
// ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/indexed_format.h"

namespace cairn {

struct DatasetFiles {
  std::string tokens;  // PREFIX.bin
  std::string index;   // PREFIX.idx
};

// One sequence a document. Requires tokens that the type can hold.
DatasetFiles EncodeDataset(TokenType type, const std::vector<std::vector<int32_t>>& documents);

}  // namespace cairn
