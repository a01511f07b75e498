// A state dict of torch's optimizers: hyper-parameters, states, and other plain values of pickles.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "ckpt/model/tensor.h"
#include "convert/torch/torch_file.h"

namespace cairn {

inline constexpr const char* kGroupMembers = "params";  // of a group: the names of its parameters
inline constexpr size_t kMaxParamGroups = 64;           // of an untrusted file

// None, numbers, texts, and lists and tuples of them; nothing for others.
std::optional<nlohmann::json> PlainJson(const PyValue& value);

// `param_groups` of an optimizer's state dict: a list of dicts, without the parameters themselves. Empty
// if there is none.
nlohmann::json ParamGroupsOf(const PyValue* groups);

// A number, or the one element of a tensor of fp32, fp64, int32 or int64 in `file`; nothing for others.
Result<std::optional<double>> ScalarOf(FileSystem& fs, const TorchFile& file, const PyValue* value);

// The states that an optimizer of torch keeps for a parameter, or for a flat group of them, by name.
struct OptimizerStates {
  std::vector<std::pair<Role, const TensorRef*>> tensors;  // by role; all but the step
  const PyValue* step = nullptr;                           // the number of updates; null if missing
};

// `state` is the dict of one parameter, `of` its name for messages. None is not a state. Errors: NotSupported
// naming a state whose name cannot be a role's, or that is not a tensor.
Result<OptimizerStates> StatesOf(const PyValue& state, const std::string& of);

// True if a state is one number, and not of its parameter's shape.
inline bool IsNumber(const TensorRef& tensor) { return tensor.shape.rank() == 0; }

}  // namespace cairn
