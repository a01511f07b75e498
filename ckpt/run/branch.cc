#include "ckpt/run/branch.h"

#include <algorithm>

namespace cairn {
namespace {

bool MayBeSame(const std::string& run, const std::string& other) {
  return run.empty() || other.empty() || run == other;
}

// As the versions before 4 say it.
bool IsOldForm(const Descent& descent) {
  return !descent.origin && descent.first_steps.size() == descent.branches.size();
}

// The highest number in the branch `number`, of `run`, that `step` descends from or is.
int64_t LastIn(size_t number, const std::string& run, const BranchedStep& step) {
  const std::vector<EarlierBranch>& branches = step.descent.branches;
  if (number < branches.size()) return MayBeSame(branches[number].run, run) ? branches[number].last : -1;
  return number == branches.size() && MayBeSame(step.run, run) ? step.step : -1;
}

}  // namespace

std::strong_ordering BranchedStep::operator<=>(const BranchedStep& other) const {
  const auto order = branch() <=> other.branch();
  return order != 0 ? order : step <=> other.step;
}

Lineage LineageOf(const BranchedStep& step, const BranchedStep& newest) {
  const std::vector<EarlierBranch>& branches = newest.descent.branches;
  const auto number = static_cast<size_t>(step.branch());
  if (number < branches.size()) {
    if (!MayBeSame(branches[number].run, step.run)) return Lineage::kOtherRun;
    return step.step <= branches[number].last ? Lineage::kCurrent : Lineage::kSuperseded;
  }
  if (step.run == newest.run) return Lineage::kCurrent;
  // A copied run that an earlier Cairn continued lists no branch for the steps it was copied with.
  const bool before = IsOldForm(step.descent) && IsOldForm(newest.descent) && step.step < newest.step;
  return before ? Lineage::kCurrent : Lineage::kOtherRun;
}

bool InLineOf(const BranchedStep& origin, const BranchedStep& newest) {
  const auto& branches = newest.descent.branches;
  return origin.run == newest.run || std::ranges::count(branches, origin.run, &EarlierBranch::run) > 0;
}

Descent NextDescent(int64_t step, const std::string& run, const std::optional<BranchedStep>& newest,
                    const std::optional<BranchedStep>& origin) {
  Descent next;
  if (origin) next.origin = origin->id();
  if (!newest) return next;
  next.branches = newest->descent.branches;
  const bool known = origin && InLineOf(*origin, *newest);
  const bool continues = !known || origin->id() == newest->id();
  if (continues && step > newest->step && run == newest->run) return next;
  next.branches.push_back({newest->run, newest->step});
  for (size_t i = 0; i < next.branches.size(); ++i) {
    EarlierBranch& branch = next.branches[i];
    if (known) branch.last = LastIn(i, branch.run, *origin);
    branch.last = std::min(branch.last, step - 1);
  }
  return next;
}

}  // namespace cairn
