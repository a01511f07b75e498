// The progress of a training in checkpoints of Megatron and its forks.
#pragma once

#include <nlohmann/json.hpp>

#include "convert/torch/torch_file.h"

namespace cairn {

// iteration, consumed_samples, the schedule of the learning rate, the loss scale, parameters that share
// their memory, out of a checkpoint's top level and its args.
nlohmann::json MegatronState(const PyValue& root);

// Adds hyper-parameters and step from the state dict of a torch optimizer.
void AddParamGroups(const PyValue& optimizer, nlohmann::json& state);

// Adds the loss scale of Megatron's `optimizer.grad_scaler` in `file` at `path`, with what its growth counts.
Status AddGradScaler(FileSystem& fs, const TorchFile& file, nlohmann::json& state);

}  // namespace cairn
