// The progress of a training in checkpoints of Megatron and its forks.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "convert/foreign/account.h"
#include "convert/torch/torch_file.h"

namespace cairn {

// iteration, consumed_samples, the schedule of the learning rate, the loss scale, parameters that share
// their memory, out of a checkpoint's top level and its args.
nlohmann::json MegatronState(const PyValue& root);

// The optimizers of a training: the parameters of experts have one of their own if they are spread over
// ranks, and `optimizer` is then a list of both, or has them under their numbers; otherwise it is the only
// one.
std::vector<const PyValue*> ChainedOf(const PyValue& optimizer);

// Adds hyper-parameters and step from the state dict of a torch optimizer.
void AddParamGroups(const PyValue& optimizer, nlohmann::json& state);

// Adds the numbers that the optimizer and the grad scaler below `root`, a checkpoint's top level in `file`,
// keep in tensors: the step, those of param_groups, the loss scale and its growth counter.
Status AddNumbersInTensors(FileSystem& fs, const TorchFile& file, const PyValue& root, nlohmann::json& state);

// Declares in `account` as left behind the entries of a checkpoint's top level and of its optimizer that no
// reader takes. `models`: the keys of the weights; `prefix` comes before each name.
void LeaveWhatIsNotRead(const PyValue& root, const std::set<std::string>& models, const std::string& prefix,
                        Account& account);

// True if a module's `_extra_state` has no bytes and no elements, so that the module makes its own. With FP8
// it holds the scales of Transformer Engine: as a tensor of bytes, or as a BytesIO.
bool IsEmptyState(const PyValue& state);

}  // namespace cairn
