#include "tools/serve/copy_interval.h"

#include "ckpt/model/save_interval.h"

namespace cairn {

void CopyInterval::Began(double seconds) {
  const std::lock_guard lock(mutex_);
  if (++saves_ == 1) first_ = seconds;
  last_ = seconds;
}

void CopyInterval::Copied(double seconds, double failures_per_second) {
  const std::lock_guard lock(mutex_);
  failures_per_second_ = failures_per_second;
  ++copies_;
  copy_seconds_ += seconds;
}

std::optional<int64_t> CopyInterval::Choose() {
  const std::lock_guard lock(mutex_);
  if (copies_ == 0 || saves_ < 2 || chosen_after_ == copies_) return chosen_;
  const double seconds = copy_seconds_ / static_cast<double>(copies_);
  const SaveTier tier{.stall_seconds = kBackgroundCost * seconds,
                      .save_seconds = seconds,
                      .failures_per_second = failures_per_second_};
  chosen_ = BestIntervals({&tier, 1}, (last_ - first_) / static_cast<double>(saves_ - 1)).front();
  chosen_after_ = copies_;
  return chosen_;
}

}  // namespace cairn
