// The order in which the steps of a run were committed. The number of a step is not its age: a training that
// goes back, after a loss spike for example, commits lower numbers after higher ones.
//
// With the first such commit a *branch* begins. The manifests of its steps list the first step of each branch
// up to theirs, oldest first: [] before a training went back, [11] after it went back from step 40 and
// committed step 11. Steps of earlier branches from that number on are *superseded*: they are no longer part
// of the training that the newest step continues. Without them numbers and commits have the same order.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace cairn {

struct BranchedStep {
  int64_t step = 0;
  std::vector<int64_t> branches = {};  // Manifest::branches

  // Later commits are greater.
  std::strong_ordering operator<=>(const BranchedStep& other) const;
  bool operator==(const BranchedStep& other) const = default;
};

// True if a branch of `newest` began after `step` was committed, at its number or before.
bool IsSuperseded(const BranchedStep& step, const BranchedStep& newest);

// For each step, whether the newest of them supersedes it. Steps in any order.
std::vector<bool> Superseded(std::span<const BranchedStep> steps);

// The branches of a step that is committed after `newest`, the newest step of its run (nullopt: it is the
// first). A lower number than the newest begins a branch.
std::vector<int64_t> BranchesOf(int64_t step, const std::optional<BranchedStep>& newest);

}  // namespace cairn
