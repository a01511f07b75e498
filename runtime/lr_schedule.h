// The learning rate as a function of the samples consumed: linear warm-up, then constant, linear or cosine
// decay.
//
// Counting samples, not steps, keeps the curve where the batch size ramps up or changes on resume. Formulas
// as Megatron's OptimizerParamScheduler; the rate of a step is that at the samples consumed once the step is
// done, so that no step is taken at rate 0.
#pragma once

#include "runtime/data/train_config.h"

namespace cairn {

class LrSchedule {
 public:
  // Requires a validated config. `total_samples`: of the whole training, the decay's default length.
  LrSchedule(const TrainConfig& config, int64_t total_samples);

  double At(int64_t consumed_samples) const;

 private:
  double max_lr_;
  double min_lr_;
  std::string style_;
  double warmup_samples_ = 0;
  double decay_samples_ = 0;
};

}  // namespace cairn
