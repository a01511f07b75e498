// How a rank waits: a few polls in a row, then it yields, then it sleeps a little longer each time.
//
// CPU ranks share cores (eight on two is usual in tests), so a rank that waits must leave them to the others.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>

namespace cairn {

class Backoff {
 public:
  // `longest_sleep_ns`: how late a wait may notice that it is over.
  explicit Backoff(long longest_sleep_ns = 200'000) : longest_sleep_ns_(longest_sleep_ns) {}

  void Pause() {
    if (++polls_ < kYields) {
      sched_yield();
      return;
    }
    const timespec sleep{0, sleep_ns_};
    nanosleep(&sleep, nullptr);
    sleep_ns_ = std::min(sleep_ns_ * 2, longest_sleep_ns_);
  }

 private:
  static constexpr int kYields = 32;
  long longest_sleep_ns_;
  long sleep_ns_ = 10'000;
  int polls_ = 0;
};

}  // namespace cairn
