// The order in which the steps of a run were committed, and which of them the newest one descends from. The
// number of a step is neither its age nor its origin: a training that goes back, after a loss spike for
// example, may continue from any step that still exists, and with any higher or lower number.
//
// Commits are divided in *branches*, numbered by when they began. A step continues the branch of the newest
// step if that is its origin, the step that its training came from; any other step begins a branch. Its
// manifest lists for each earlier branch the last step that it descends from: [] in 10 to 40, [10] in a step
// 11 that came from 10, and [30, -1] if the training then went back to 30 after all. Along a line of descent
// the numbers ascend: a step that is saved again with the same or a lower number descends only from lower
// ones. Steps that the newest one does not descend from are *superseded*.
//
// If the origin is not known, because the training loaded it by other means, a higher number than that of
// the newest step continues its branch, and another number begins a branch that descends from all lower ones.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/model/manifest.h"

namespace cairn {

struct BranchedStep {
  int64_t step = 0;
  std::string run = {};
  Descent descent = {};

  static BranchedStep Of(const Manifest& manifest) { return {manifest.step, manifest.run, manifest.descent}; }
  int64_t branch() const { return static_cast<int64_t>(descent.branches.size()); }
  // Its name among the commits of all runs.
  Origin id() const { return {run, branch(), step}; }

  // Later commits are greater.
  std::strong_ordering operator<=>(const BranchedStep& other) const;
  bool operator==(const BranchedStep& other) const = default;
};

enum class Lineage {
  kCurrent,     // the newest step, or one that it descends from
  kSuperseded,  // given up, or saved again: no longer a part of the training that the newest step continues
  kOtherRun,    // of a run that the newest step does not know
};
// The lineage of a step in the run directory whose newest step is `newest`.
Lineage LineageOf(const BranchedStep& step, const BranchedStep& newest);

// Whether `origin` is of a run that commits after `newest` can descend from.
bool InLineOf(const BranchedStep& origin, const BranchedStep& newest);

// The descent of a step that `run` commits after `newest`, the newest step of its directory (nullopt: it is
// the first). `origin`: the step that its training came from; nullopt: not known.
Descent NextDescent(int64_t step, const std::string& run, const std::optional<BranchedStep>& newest,
                    const std::optional<BranchedStep>& origin);

}  // namespace cairn
