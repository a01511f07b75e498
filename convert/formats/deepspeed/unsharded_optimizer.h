// The optimizer of a DeepSpeed training without ZeRO: a state dict of torch's own in the model states, with
// fp32 masters beside it if the weights have 16 bits.
//
// Source: deepspeed 0.19 runtime/fp16/unfused_optimizer.py, fused_optimizer.py, runtime/engine.py. It numbers
// parameters and does not name them. With masters they are identified by value: each master rounds to its
// weight, and a group has its parameters in the order of the model. Without masters they are identified by
// shape.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "convert/foreign/stored_builder.h"

namespace cairn {

struct UnshardedState {
  size_t weight = 0;  // of those that were given
  Role role = Role::kMaster;
  StoredArray array;
};

struct UnshardedOptimizer {
  std::vector<UnshardedState> states;
  std::vector<std::vector<std::string>> groups;     // stored names of each group's weights
  nlohmann::json state = nlohmann::json::object();  // param_groups, optimizer_step, loss_scale
};

// `optimizer` is an entry of `file`, in `directory`; `weights` are the trained
// parameters in the order of the model. Errors: NotSupported naming a state that has no place, or if
// shapes do not tell the parameters apart; Corrupt if a master rounds to no weight.
Result<UnshardedOptimizer> ReadUnsharded(FileSystem& fs, const std::string& directory, const TorchFile& file,
                                         const PyValue& optimizer,
                                         const std::vector<const StoredArray*>& weights,
                                         StoredBuilder& builder);

}  // namespace cairn
