#include "convert/formats/training/part_of_state.h"

#include <algorithm>
#include <map>
#include <vector>

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

bool IsShorterInOne(const Dims& shape, const Dims& parameter) {
  if (shape.rank() != 2 || parameter.rank() != 2) return false;
  return (shape[0] == parameter[0] && shape[1] < parameter[1]) ||
         (shape[1] == parameter[1] && shape[0] < parameter[0]);
}

// Each state that is not of its parameter's shape, with that parameter's shape.
std::vector<std::pair<const TensorEntry*, const Dims*>> PartsOfStates(const TensorTable& table) {
  std::map<std::string_view, const Dims*> weights;
  for (const TensorEntry& tensor : table.tensors)
    if (tensor.role == Role::kWeight) weights.emplace(tensor.spec.name, &tensor.spec.shape);
  std::vector<std::pair<const TensorEntry*, const Dims*>> parts;
  for (const TensorEntry& tensor : table.tensors) {
    const auto weight = weights.find(tensor.spec.name);
    if (IsOptimizerState(tensor.role) && weight != weights.end() &&
        IsPart(tensor.role, tensor.spec.shape, *weight->second))
      parts.emplace_back(&tensor, weight->second);
  }
  return parts;
}

}  // namespace

std::string FirstPartOfState(const TensorTable& table) {
  const auto parts = PartsOfStates(table);
  if (parts.empty()) return "";
  const auto& [tensor, parameter] = parts.front();
  return fmt::format("{} is of another shape than its parameter: {}, not {}", DisplayName(*tensor),
                     ToString(tensor->spec.shape), ToString(*parameter));
}

bool MayBeOfLowRank(const TensorTable& table) {
  std::map<std::string_view, std::vector<const Dims*>> moments;
  for (const auto& [tensor, parameter] : PartsOfStates(table)) {
    const bool moment = tensor->role == Role::kExpAvg || tensor->role == Role::kExpAvgSq;
    if (!moment || !IsShorterInOne(tensor->spec.shape, *parameter)) return false;
    moments[tensor->spec.name].push_back(&tensor->spec.shape);
  }
  return std::ranges::all_of(
      moments, [](const auto& one) { return one.second.size() == 2 && *one.second[0] == *one.second[1]; });
}

}  // namespace cairn
