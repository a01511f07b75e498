// A file of one rank's ZeRO optimizer: what it records beside its flat vectors.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <vector>

#include "convert/torch/torch_file.h"

namespace cairn {

// Null if the file holds none.
const PyValue* ZeroOptimizerOf(const TorchFile& shard);
int ZeroStageOf(const PyValue& optimizer);
// The moments and the number of updates of a group; null if it has no state.
const PyValue* GroupState(const PyValue& optimizer, int stage, size_t group);

// Over how many ranks each group is cut; one number if the file has one for all. Errors: Corrupt.
Result<std::vector<size_t>> PartitionCounts(const TorchFile& shard);
// The numbers of updates that its groups have.
Result<std::set<double>> ZeroSteps(FileSystem& fs, const TorchFile& shard, int stage);
// param_groups, clip_grad and the loss scale of a manifest's state.
nlohmann::json ZeroState(const PyValue& optimizer, int stage);

}  // namespace cairn
