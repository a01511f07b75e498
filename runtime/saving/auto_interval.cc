#include "runtime/saving/auto_interval.h"

namespace cairn {

void AutoInterval::Step() {
  const auto now = std::chrono::steady_clock::now();
  if (++steps_ == 1) first_ = now;
  if (steps_ == kEvery) step_seconds_ = std::chrono::duration<double>(now - first_).count() / (kEvery - 1);
}

}  // namespace cairn
