// Checks that masters and weights belong together: rounded to the weight's type, each master is its weight.
//
// Proves the order and the paddings that a format module assumed for flattened optimizer shards: wrong ones
// pair parameters with the values of others. Every training that keeps both rounds one to the other.
#pragma once

#include "ckpt/model/source.h"

namespace cairn {

struct MasterProof {
  uint64_t parameters = 0;  // that have both
  uint64_t elements = 0;
};

// Reads all masters and the weights they belong to. Errors: Corrupt naming the parameter, the first element
// that differs and both values; those of reading.
Result<MasterProof> ProveMasters(CheckpointSource& source, uint64_t max_memory);

}  // namespace cairn
