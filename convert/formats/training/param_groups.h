// The hyper-parameters of torch's optimizers, and other plain values of pickles.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

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

}  // namespace cairn
