#include "convert/formats/training/part_of_state.h"

#include <map>

namespace cairn {
namespace {

bool IsPart(Role role, const Dims& shape, const Dims& parameter) {
  const bool of_parameter = role == Role::kMaster || role == Role::kExpAvg || role == Role::kExpAvgSq ||
                            role == Role::kMaxExpAvgSq || role == Role::kMomentumBuffer;
  if (!role.has_number() || shape == parameter || shape.Volume() == 1) return false;
  if (of_parameter || shape.rank() > parameter.rank()) return true;
  for (int dim = 0; shape.rank() == parameter.rank() && dim < shape.rank(); ++dim)
    if (shape[dim] != parameter[dim] && shape[dim] != 1) return true;
  return false;
}

}  // namespace

std::string FirstPartOfState(const TensorTable& table) {
  std::map<std::string_view, const Dims*> weights;
  for (const TensorEntry& tensor : table.tensors)
    if (tensor.role == Role::kWeight) weights.emplace(tensor.spec.name, &tensor.spec.shape);
  for (const TensorEntry& tensor : table.tensors) {
    const auto weight = weights.find(tensor.spec.name);
    if (!IsOptimizerState(tensor.role) || weight == weights.end()) continue;
    if (IsPart(tensor.role, tensor.spec.shape, *weight->second))
      return fmt::format("{} has shape {}, but its parameter has {}: it is only a part", DisplayName(tensor),
                         ToString(tensor.spec.shape), ToString(*weight->second));
  }
  return "";
}

}  // namespace cairn
