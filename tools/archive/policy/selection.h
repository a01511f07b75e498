// Selects the steps of a run that the classes of a policy keep, in which form, and why. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/archive/policy/policy.h"

namespace cairn {

// A step that exists somewhere: on scratch, in the store, or both.
struct TimelineStep {
  int64_t step = 0;
  int64_t tokens = 0;
  int64_t saved_unix_seconds = 0;  // 0: not known; calendar classes skip it
  bool healthy = true;             // and not superseded; otherwise no class counts it
  std::vector<std::string> tags = {};
};

struct WantedForms {
  bool full = false;
  bool weights = false;              // both may be true
  std::vector<std::string> reasons;  // "full every 5000", "weights-fp16 last 2"

  void Add(const WantedForms& more);  // each reason once
};

// The forms to keep of each step of `timeline`, which is ascending and has each step once. A step that is not
// healthy is never kept, and does not take the place of another.
std::map<int64_t, WantedForms> SelectSteps(const std::vector<TimelineStep>& timeline,
                                           const std::vector<KeepClass>& classes);

// True if a class that keeps none of these steps may keep a later one.
bool MayAskLater(const std::vector<TimelineStep>& timeline, const std::vector<KeepClass>& classes);

}  // namespace cairn
