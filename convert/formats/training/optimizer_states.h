// The states that an optimizer of torch keeps for a parameter, or for a flat group of them, by name.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/model/tensor.h"
#include "convert/torch/pickle_value.h"

namespace cairn {

struct OptimizerStates {
  std::vector<std::pair<Role, const TensorRef*>> tensors;  // by role; all but the step
  const PyValue* step = nullptr;                           // the number of updates; null if missing
};

// `state` is the dict of one parameter, `of` its name for messages. None is not a state. Errors: NotSupported
// naming a state that is not a Role, or not a tensor.
Result<OptimizerStates> StatesOf(const PyValue& state, const std::string& of);

// Whether a state is one number, and not of its parameter's shape.
inline bool IsNumber(const TensorRef& tensor) { return tensor.shape.rank() == 0; }

}  // namespace cairn
