#include "convert/formats/training/optimizer_states.h"

#include <algorithm>

#include "convert/torch/tensor_walk.h"

namespace cairn {

Result<OptimizerStates> StatesOf(const PyValue& state, const std::string& of) {
  OptimizerStates states;
  if (!state.is(PyKind::kDict)) return NotSupported("the state of {} is not a dict", of);
  for (size_t i = 0; i + 1 < state.items.size(); i += 2) {
    const std::string key = KeyText(*state.items[i]);
    const PyValue* value = state.items[i + 1];
    if (value->is(PyKind::kNone)) continue;
    if (key == "step") {
      states.step = value;
      continue;
    }
    const auto role = ParseRole(key);
    if (!role || !IsOptimizerState(*role) || *role == Role::kMaster)
      return NotSupported("{} of {} is not a known optimizer state", key, of);
    if (!value->is(PyKind::kTensor)) return NotSupported("{} of {} is not a tensor", key, of);
    states.tensors.emplace_back(*role, value->tensor);
  }
  std::ranges::sort(states.tensors);
  return states;
}

}  // namespace cairn
