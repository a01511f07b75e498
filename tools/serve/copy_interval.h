// every="auto" of cairn.torch: how many local saves there are for each one that is copied to the run, by the
// model of `cairn plan` (ckpt/model/save_interval.h) from what the saves of this process took.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>

namespace cairn {

// Safe from several threads.
class CopyInterval {
 public:
  // A save begins, at `seconds` of any clock.
  void Began(double seconds);
  // A save is in the run, `seconds` after its begin. `failures_per_second`: those that local steps do not
  // survive.
  void Copied(double seconds, double failures_per_second);
  // nullopt before a copy and two saves. Changes only after a copy.
  std::optional<int64_t> Choose();

 private:
  std::mutex mutex_;
  int64_t saves_ = 0, copies_ = 0;
  double first_ = 0, last_ = 0;  // begins
  double copy_seconds_ = 0;      // sum
  double failures_per_second_ = 0;
  int64_t chosen_after_ = -1;  // copies
  std::optional<int64_t> chosen_;
};

}  // namespace cairn
