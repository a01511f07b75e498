#include "ckpt/save_interval.h"

#include <algorithm>
#include <cmath>

namespace cairn {

int64_t SaveInterval(double save_seconds, double failure_seconds, double step_seconds) {
  const double seconds = std::sqrt(2 * save_seconds * failure_seconds) - save_seconds;
  return std::max<int64_t>(1, std::llround(std::min(1e9, seconds / step_seconds)));
}

}  // namespace cairn
