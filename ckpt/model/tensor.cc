#include "ckpt/model/tensor.h"

#include <algorithm>
#include <cstring>

#include "ckpt/base/glob.h"

namespace cairn {
namespace {

constexpr std::string_view kRoleNames[] = {
    "?", "weight", "master", "exp_avg", "exp_avg_sq", "rng",
    // other optimizers, as torch.optim, transformers and Muon name them
    "step", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum", "exp_inf",
    "mu_product", "prev", "step_size", "eta", "mu", "ax", "exp_avg_sq_row", "exp_avg_sq_col", "row_var",
    "col_var", "variance",
    // values of a training
    "json", "pickle", "training"};
bool IsRoleName(std::string_view name) {
  constexpr std::string_view kCharacters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:";
  if (name.empty() || name.size() > Role::kMaxNameBytes || name.find_first_not_of(kCharacters) != name.npos)
    return false;
  for (const std::string_view group : {".", "..", "cairn", "model", "state", "master_low"})
    if (name == group) return false;
  return true;
}

}  // namespace

std::string_view Name(const Role& role) {
  if (role.has_number()) return kRoleNames[role.number() < std::size(kRoleNames) ? role.number() : 0];
  const auto* name = reinterpret_cast<const char*>(role.bytes_.data());
  return {name, strnlen(name, role.bytes_.size())};
}

std::optional<Role> ParseRole(std::string_view name) {
  for (size_t i = 1; i < std::size(kRoleNames); ++i)
    if (kRoleNames[i] == name) return Role(static_cast<uint8_t>(i));
  return std::nullopt;
}

Result<Role> RoleNamed(std::string_view name) {
  if (const auto known = ParseRole(name)) return *known;
  if (!IsRoleName(name)) return InvalidArgument("\"{}\" cannot be the name of a role", name);
  Role role;
  std::ranges::copy(name, role.bytes_.begin());
  return role;
}

bool IsOpaque(Role role) {
  return role == Role::kRng || role == Role::kJson || role == Role::kPickle || role == Role::kTraining;
}
bool IsOptimizerState(Role role) { return role != Role::kWeight && !IsOpaque(role); }

const Cut* ParameterSpec::padded() const {
  const auto found = std::ranges::find_if(cuts, [](const Cut& cut) { return cut.pad > 0; });
  return found == cuts.end() ? nullptr : &*found;
}

std::string DisplayName(const TensorEntry& entry) {
  return entry.role == Role::kWeight ? entry.spec.name
                                     : fmt::format("{}/{}", entry.spec.name, Name(entry.role));
}

bool FitsGlob(const TensorEntry& tensor, const std::string& glob) {
  return FitsGlob(DisplayName(tensor), glob) || FitsGlob(tensor.spec.name, glob);
}

}  // namespace cairn
