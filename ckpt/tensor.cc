#include "ckpt/tensor.h"

namespace cairn {
namespace {

constexpr std::string_view kRoleNames[] = {"?", "weight", "master", "exp_avg", "exp_avg_sq", "rng"};

}  // namespace

std::string_view Name(Role role) {
  const auto index = static_cast<size_t>(role);
  return index < std::size(kRoleNames) ? kRoleNames[index] : kRoleNames[0];
}

std::optional<Role> ParseRole(std::string_view name) {
  for (size_t i = 1; i < std::size(kRoleNames); ++i)
    if (kRoleNames[i] == name) return static_cast<Role>(i);
  return std::nullopt;
}

std::string DisplayName(const TensorEntry& entry) {
  return entry.role == Role::kWeight ? entry.spec.name
                                     : fmt::format("{}/{}", entry.spec.name, Name(entry.role));
}

}  // namespace cairn
