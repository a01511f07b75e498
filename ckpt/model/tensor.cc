// Roles without a number are kept in a table of the process, which only grows. A Role is therefore one byte,
// and its name costs one look-up.
#include "ckpt/model/tensor.h"

#include <array>
#include <atomic>
#include <mutex>

#include "ckpt/base/glob.h"

namespace cairn {
namespace {

constexpr std::string_view kRoleNames[] = {"?", "weight", "master", "exp_avg", "exp_avg_sq", "rng",
                                           // other optimizers
                                           "step", "max_exp_avg_sq", "momentum_buffer", "square_avg",
                                           "grad_avg", "acc_delta", "sum", "exp_inf", "mu_product", "prev",
                                           "step_size", "eta", "mu", "ax", "exp_avg_sq_row", "exp_avg_sq_col",
                                           "row_var", "col_var", "variance",
                                           // values of a training
                                           "json", "pickle", "training"};
constexpr size_t kFirstNamed = static_cast<size_t>(Role::kFirstNamed);
constexpr size_t kMaxNameBytes = 64;

// Names of roles from kFirstNamed on. A name is never removed.
class NamedRoles {
 public:
  static NamedRoles& Get() {
    static NamedRoles* const roles = new NamedRoles;  // never destroyed: names outlive all users
    return *roles;
  }

  size_t size() const { return count_.load(std::memory_order_acquire); }
  std::string_view operator[](size_t index) const { return names_[index]; }

  // Its index; nullopt if the table is full.
  std::optional<size_t> Add(std::string_view name) {
    const std::scoped_lock lock(mutex_);
    const size_t count = size();
    for (size_t i = 0; i < count; ++i)
      if (names_[i] == name) return i;
    if (count == names_.size()) return std::nullopt;
    names_[count] = name;
    count_.store(count + 1, std::memory_order_release);
    return count;
  }

 private:
  std::mutex mutex_;
  std::atomic<size_t> count_ = 0;
  std::array<std::string, 256 - kFirstNamed> names_;
};

bool IsRoleName(std::string_view name) {
  constexpr std::string_view kCharacters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:";
  if (name.empty() || name.size() > kMaxNameBytes || name.find_first_not_of(kCharacters) != name.npos)
    return false;
  for (const std::string_view group : {".", "..", "cairn", "model", "state", "master_low"})
    if (name == group) return false;
  return true;
}

}  // namespace

std::string_view Name(Role role) {
  const auto index = static_cast<size_t>(role);
  if (index < std::size(kRoleNames)) return kRoleNames[index];
  const NamedRoles& named = NamedRoles::Get();
  return index >= kFirstNamed && index - kFirstNamed < named.size() ? named[index - kFirstNamed]
                                                                    : kRoleNames[0];
}

std::vector<Role> KnownRoles() {
  std::vector<Role> roles;
  for (size_t i = 1; i < std::size(kRoleNames); ++i) roles.push_back(static_cast<Role>(i));
  for (size_t i = 0; i < NamedRoles::Get().size(); ++i) roles.push_back(static_cast<Role>(kFirstNamed + i));
  return roles;
}

std::optional<Role> ParseRole(std::string_view name) {
  for (size_t i = 1; i < std::size(kRoleNames); ++i)
    if (kRoleNames[i] == name) return static_cast<Role>(i);
  return std::nullopt;
}

Result<Role> RoleNamed(std::string_view name) {
  if (const auto known = ParseRole(name)) return *known;
  if (!IsRoleName(name)) return InvalidArgument("\"{}\" cannot be the name of a role", name);
  const auto index = NamedRoles::Get().Add(name);
  if (!index) return InvalidArgument("role {}: there are too many roles", name);
  return static_cast<Role>(kFirstNamed + *index);
}

bool IsOpaque(Role role) {
  return role == Role::kRng || role == Role::kJson || role == Role::kPickle || role == Role::kTraining;
}
bool IsOptimizerState(Role role) { return role != Role::kWeight && !IsOpaque(role); }

std::string DisplayName(const TensorEntry& entry) {
  return entry.role == Role::kWeight ? entry.spec.name
                                     : fmt::format("{}/{}", entry.spec.name, Name(entry.role));
}

bool FitsGlob(const TensorEntry& tensor, const std::string& glob) {
  return FitsGlob(DisplayName(tensor), glob) || FitsGlob(tensor.spec.name, glob);
}

}  // namespace cairn
