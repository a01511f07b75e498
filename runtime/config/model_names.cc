#include "runtime/config/model_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>

namespace cairn {
namespace {

// In the order of the enumerators.
constexpr std::string_view kNormalizations[] = {"LayerNorm", "RMSNorm"};
constexpr std::string_view kPositions[] = {"learned", "rope", "alibi", "none"};
constexpr std::string_view kActivations[] = {"gelu", "gelu_new", "relu", "relu2", "silu", "linear"};

template <typename Choice>
Result<Choice> ChoiceNamed(std::span<const std::string_view> names, std::string_view name,
                           std::string_view where) {
  const auto found = std::ranges::find(names, name);
  if (found != names.end()) return static_cast<Choice>(found - names.begin());
  return NotSupported("{} is '{}', which cannot be trained here; known are {}", where, name,
                      fmt::join(names, ", "));
}

}  // namespace

std::string_view NameOf(Normalization choice) { return kNormalizations[static_cast<int>(choice)]; }
std::string_view NameOf(Position choice) { return kPositions[static_cast<int>(choice)]; }
std::string_view NameOf(Activation choice) { return kActivations[static_cast<int>(choice)]; }

Result<Normalization> NormalizationNamed(std::string_view name, std::string_view where) {
  return ChoiceNamed<Normalization>(kNormalizations, name, where);
}
Result<Position> PositionNamed(std::string_view name, std::string_view where) {
  return ChoiceNamed<Position>(kPositions, name, where);
}
Result<Activation> ActivationNamed(std::string_view name, std::string_view where) {
  return ChoiceNamed<Activation>(kActivations, name, where);
}

}  // namespace cairn
