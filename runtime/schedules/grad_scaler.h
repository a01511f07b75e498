// The loss scale: fixed at 1 unless training in fp16, where gradients would underflow.
//
// Dynamic as Megatron's: an overflow skips the step; after `hysteresis` of them the scale halves; it doubles
// after `window` steps without one. The state is in TrainState, so a resume is exact.
#pragma once

#include "runtime/config/train_config.h"
#include "runtime/control/train_state.h"

namespace cairn {

class GradScaler {
 public:
  explicit GradScaler(const TrainConfig& config);

  // Writes the first scale into `state`.
  void Start(TrainState& state) const;

  // After a resume: keeps the scale of `state` where both runs scale, else starts again.
  void Resume(TrainState& state) const;

  // True if an overflow in the step that begins with this state only says that the scale is too high.
  bool Explains(const TrainState& state) const { return dynamic_ && state.loss_scale > min_scale_; }

  // To be called once a step with whether any gradient was infinite or not a number.
  void Update(bool overflow, TrainState& state) const;

 private:
  bool dynamic_;
  double initial_scale_;
  double min_scale_;
  int64_t window_;
  int64_t hysteresis_;
};

}  // namespace cairn
