// How often a training saves.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace cairn {

// Steps between checkpoints that lose the least time to saves and to work done again: sqrt(2 C M) - C seconds
// with C of a save and M between failures of the whole job (Young 1974; Daly 2006). At least 1.
inline int64_t SaveInterval(double save_seconds, double failure_seconds, double step_seconds) {
  const double seconds = std::sqrt(2 * save_seconds * failure_seconds) - save_seconds;
  return std::max<int64_t>(1, std::llround(std::min(1e9, seconds / step_seconds)));
}

// Hours between failures of one node: large trainings of 48 and of 2000 nodes reported 5000 to 6000.
inline constexpr double kNodeMtbfHours = 5000;

}  // namespace cairn
