#include "convert/formats/training/part_of_state.h"

#include <algorithm>
#include <map>
#include <vector>

#include "convert/formats/training/state_places.h"

namespace cairn {
namespace {

// Adafactor keeps sums over one dimension of a matrix in place of the matrix. transformers drops the
// dimension, torch makes it 1.
struct Factor {
  std::string_view role;
  int from_last;  // dimension
};
constexpr Factor kFactors[] = {{"exp_avg_sq_row", 1}, {"exp_avg_sq_col", 2}, {"row_var", 1}, {"col_var", 2}};

bool IsFactor(std::string_view key, const Dims& shape, const Dims& parameter) {
  const auto factor = std::ranges::find(kFactors, key, &Factor::role);
  if (factor == std::end(kFactors) || parameter.rank() < factor->from_last) return false;
  const int summed = parameter.rank() - factor->from_last;
  Dims kept = parameter, dropped;
  kept[summed] = 1;
  for (int dim = 0; dim < parameter.rank(); ++dim)
    if (dim != summed) dropped.push_back(parameter[dim]);
  return shape == kept || shape == dropped;
}

// bitsandbytes keeps a scale for each block of a state of 8 bits, and the values that the bits stand for.
bool IsOfBlocks(std::string_view key, const Dims& shape, const Dims& parameter) {
  const auto blocks = [&](uint64_t size) { return Dims{(parameter.Volume() + size - 1) / size}; };
  if (key == "qmap1" || key == "qmap2") return shape == Dims{256};
  return (key == "absmax1" || key == "absmax2") && (shape == blocks(256) || shape == blocks(2048));
}

enum class Held { kWhole, kPart, kUnknown };
Held HeldOf(Role role, const Dims& shape, const Dims& parameter) {
  const std::string_view name = Name(role), key = name.substr(name.rfind('.') + 1);
  if (shape == parameter || shape.Volume() == 1 || IsFactor(key, shape, parameter) ||
      IsOfBlocks(key, shape, parameter))
    return Held::kWhole;
  return role.has_number() ? Held::kPart : Held::kUnknown;
}

bool IsShorterInOne(const Dims& shape, const Dims& parameter) {
  if (shape.rank() != 2 || parameter.rank() != 2) return false;
  return (shape[0] == parameter[0] && shape[1] < parameter[1]) ||
         (shape[1] == parameter[1] && shape[0] < parameter[0]);
}

// Each state that is held so, with its parameter's shape.
std::vector<std::pair<const TensorEntry*, const Dims*>> StatesOf(Held held, const TensorTable& table) {
  std::map<std::string_view, const Dims*> weights;
  for (const TensorEntry& tensor : table.tensors)
    if (tensor.role == Role::kWeight) weights.emplace(tensor.spec.name, &tensor.spec.shape);
  std::vector<std::pair<const TensorEntry*, const Dims*>> parts;
  for (const TensorEntry& tensor : table.tensors) {
    const auto weight = weights.find(tensor.spec.name);
    if (IsOptimizerState(tensor.role) && weight != weights.end() &&
        HeldOf(tensor.role, tensor.spec.shape, *weight->second) == held)
      parts.emplace_back(&tensor, weight->second);
  }
  return parts;
}

std::string FirstOf(Held held, const TensorTable& table) {
  const auto states = StatesOf(held, table);
  if (states.empty()) return "";
  const auto& [tensor, parameter] = states.front();
  return fmt::format("{} is of another shape than its parameter: {}, not {}", DisplayName(*tensor),
                     ToString(tensor->spec.shape), ToString(*parameter));
}

}  // namespace

std::string FirstPartOfState(const TensorTable& table) { return FirstOf(Held::kPart, table); }
std::string FirstOfUnknownShape(const TensorTable& table) { return FirstOf(Held::kUnknown, table); }

bool MayBeOfLowRank(const TensorTable& table) {
  std::map<std::string_view, std::vector<const Dims*>> moments;
  for (const auto& [tensor, parameter] : StatesOf(Held::kPart, table)) {
    const bool moment = std::ranges::find(kAdamStates, tensor->role) != std::end(kAdamStates);
    if (!moment || !IsShorterInOne(tensor->spec.shape, *parameter)) return false;
    moments[tensor->spec.name].push_back(&tensor->spec.shape);
  }
  return std::ranges::all_of(
      moments, [](const auto& one) { return one.second.size() == 2 && *one.second[0] == *one.second[1]; });
}

}  // namespace cairn
