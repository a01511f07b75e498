// Which steps of a run the classes of a policy ask for, in which form, and why. Pure.
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
  int64_t saved_unix_seconds = 0;  // 0: not known; calendar classes pass it over
  bool healthy = true;             // and not superseded; otherwise no class counts it
};

struct WantedForms {
  bool full = false;
  bool weights = false;              // also where `full` is: a class may ask for both
  std::vector<std::string> reasons;  // "full every 5000", "weights-fp16 last 2"

  void Add(const WantedForms& more);  // each reason once
};

// What is wanted of each step of `timeline`, which is ascending and has each step once. A step that is not
// healthy is never asked for, and takes no other's place.
std::map<int64_t, WantedForms> SelectSteps(const std::vector<TimelineStep>& timeline,
                                           const std::vector<KeepClass>& classes);

// Whether a class that asks for none of these steps may ask for a later one, rather than never.
bool MayAskLater(const std::vector<TimelineStep>& timeline, const std::vector<KeepClass>& classes);

}  // namespace cairn
