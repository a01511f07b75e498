// The learning rate as a function of the samples of the updates so far: linear (or logarithmic)
// warm-up, then constant, linear or cosine decay.
//
// Counting samples instead of steps keeps the curve if the batch size ramps up or changes on resume. Formulas
// as Megatron's OptimizerParamScheduler, and its timing: an update uses the rate at the samples before it
// (the first one of a warm-up is taken at rate 0), a step that is skipped does not advance it, and the log
// has the rate after the step, which is that of the next update.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "runtime/config/schedule_lengths.h"
#include "runtime/config/train_config.h"

namespace cairn {

class LrSchedule {
 public:
  // Requires a validated config. `total_samples`: of the whole training, the decay's default length.
  LrSchedule(const TrainConfig& config, int64_t total_samples);

  double At(int64_t scheduled_samples) const;  // TrainState's

  // The schedule as Megatron's OptimizerParamScheduler keeps it in a checkpoint, without num_steps, which is
  // TrainState's scheduled_samples: Megatron and Megatron-DeepSpeed continue a converted step with it.
  nlohmann::json Facts() const;

 private:
  double WarmupAt(double samples) const;

  const TrainConfig config_;
  const int64_t total_samples_;
  const ScheduleLengths lengths_;
};

}  // namespace cairn
