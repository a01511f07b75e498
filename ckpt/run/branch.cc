#include "ckpt/run/branch.h"

#include <algorithm>

namespace cairn {

std::strong_ordering BranchedStep::operator<=>(const BranchedStep& other) const {
  const auto branch = branches.size() <=> other.branches.size();
  return branch != 0 ? branch : step <=> other.step;
}

bool IsSuperseded(const BranchedStep& step, const BranchedStep& newest) {
  const size_t later = std::min(step.branches.size(), newest.branches.size());
  return std::any_of(newest.branches.begin() + static_cast<ptrdiff_t>(later), newest.branches.end(),
                     [&](int64_t first) { return first <= step.step; });
}

std::vector<bool> Superseded(std::span<const BranchedStep> steps) {
  std::vector<bool> superseded;
  if (steps.empty()) return superseded;
  const BranchedStep& newest = *std::ranges::max_element(steps, std::less<>());
  for (const BranchedStep& step : steps) superseded.push_back(IsSuperseded(step, newest));
  return superseded;
}

std::vector<int64_t> BranchesOf(int64_t step, const std::optional<BranchedStep>& newest) {
  if (!newest) return {};
  std::vector<int64_t> branches = newest->branches;
  if (step < newest->step) branches.push_back(step);
  return branches;
}

}  // namespace cairn
