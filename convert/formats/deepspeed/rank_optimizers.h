// The optimizers of all model parallel ranks of a DeepSpeed training: ZeRO shards, or a state dict in the
// model states.
#pragma once

#include "convert/formats/deepspeed/rank_slices.h"

namespace cairn {

struct OptimizerFacts {
  std::vector<std::vector<std::string>> groups;  // stored names in each group
  std::vector<std::string> doubts;               // contradictions in the files
  bool by_value = false;                         // masters are proven by their weights' values

  void AddGroups(const std::vector<std::vector<std::string>>& more);
};

// Adds the states to `ranks`, whose weights have been read. If they cannot be read and the user allows it:
// only masters, else none. With doubts, or masters that were matched by value, the caller must prove them.
// Errors: those of the files; NotSupported.
Result<OptimizerFacts> ReadOptimizers(RankSlices& ranks);

}  // namespace cairn
