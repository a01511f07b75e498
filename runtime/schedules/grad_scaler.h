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
  explicit GradScaler(const TrainConfig& config)
      : config_(config), dynamic_(config.fp16 && config.loss_scale == 0) {}

  // Writes the first scale into `state`.
  void Start(TrainState& state) const;

  // After a resume: keeps the scale of `state` if both runs scale, else starts again.
  void Resume(TrainState& state) const;

  // True if an overflow in the step that begins with this state only means that the scale is too high.
  bool Explains(const TrainState& state) const {
    return dynamic_ && state.loss_scale > config_.min_loss_scale;
  }

  // To be called once per step with whether any gradient was infinite or not a number.
  void Update(bool overflow, TrainState& state) const;

 private:
  const TrainConfig config_;
  const bool dynamic_;
};

}  // namespace cairn
