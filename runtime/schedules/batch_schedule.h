// The global batch size as a function of the samples consumed, with Megatron's linear ramp-up, and what
// follows from it: how many steps and samples a training has.
#pragma once

#include "runtime/config/train_config.h"

namespace cairn {

class BatchSchedule {
 public:
  explicit BatchSchedule(const TrainConfig& config);  // requires a validated config

  int64_t BatchAt(int64_t consumed_samples) const;

  int64_t total_iterations() const { return total_iterations_; }
  int64_t total_samples() const { return total_samples_; }  // consumed after total_iterations()

 private:
  int64_t batch_;
  int64_t start_ = 0;  // 0: no ramp-up
  int64_t increment_ = 0;
  int64_t rampup_samples_ = 0;
  int64_t total_iterations_ = 0;
  int64_t total_samples_ = 0;
};

}  // namespace cairn
