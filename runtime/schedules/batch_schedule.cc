#include "runtime/schedules/batch_schedule.h"

#include <algorithm>

namespace cairn {

BatchSchedule::BatchSchedule(const TrainConfig& config) : batch_(config.global_batch_size) {
  if (!config.rampup_batch_size.empty()) {
    start_ = config.rampup_batch_size[0];
    increment_ = config.rampup_batch_size[1];
    rampup_samples_ = config.rampup_batch_size[2];
  }
  const int64_t iteration_limit = config.by_samples() ? INT64_MAX : config.train_iters;
  const int64_t sample_limit = config.by_samples() ? config.train_samples : INT64_MAX;
  // The ramp is walked; what follows it is a division.
  while (total_iterations_ < iteration_limit && BatchAt(total_samples_) < batch_ &&
         BatchAt(total_samples_) <= sample_limit - total_samples_) {
    total_samples_ += BatchAt(total_samples_);
    ++total_iterations_;
  }
  if (BatchAt(total_samples_) < batch_) return;
  const int64_t rest =
      std::min(iteration_limit - total_iterations_, (sample_limit - total_samples_) / batch_);
  total_iterations_ += rest;
  total_samples_ += rest * batch_;
}

int64_t BatchSchedule::BatchAt(int64_t consumed_samples) const {
  if (start_ == 0 || start_ == batch_ || consumed_samples >= rampup_samples_) return batch_;
  const int64_t steps = (batch_ - start_) / increment_;
  const int64_t step = consumed_samples * steps / rampup_samples_;
  return std::min(batch_, start_ + step * increment_);
}

}  // namespace cairn
