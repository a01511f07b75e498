#include "ckpt/model/tensor.h"

namespace cairn {
namespace {

constexpr std::string_view kRoleNames[] = {"?",
                                           "weight",
                                           "master",
                                           "exp_avg",
                                           "exp_avg_sq",
                                           "rng",
                                           "step",
                                           "max_exp_avg_sq",
                                           "momentum_buffer",
                                           "square_avg",
                                           "grad_avg",
                                           "acc_delta",
                                           "sum",
                                           "exp_inf",
                                           "mu_product",
                                           "prev",
                                           "step_size",
                                           "eta",
                                           "mu",
                                           "ax",
                                           "exp_avg_sq_row",
                                           "exp_avg_sq_col",
                                           "row_var",
                                           "col_var",
                                           "variance"};

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

bool IsOptimizerState(Role role) { return role != Role::kWeight && role != Role::kRng; }

std::string DisplayName(const TensorEntry& entry) {
  return entry.role == Role::kWeight ? entry.spec.name
                                     : fmt::format("{}/{}", entry.spec.name, Name(entry.role));
}

}  // namespace cairn
