#include "runtime/schedules/grad_scaler.h"

#include <algorithm>

namespace cairn {

void GradScaler::Start(TrainState& state) const {
  state.loss_scale = !config_.fp16            ? 1.0
                     : config_.loss_scale > 0 ? config_.loss_scale
                                              : config_.initial_loss_scale;
  state.loss_scale_good_steps = 0;
  state.loss_scale_hysteresis = dynamic_ ? config_.hysteresis : 0;
}

void GradScaler::Resume(TrainState& state) const {
  const bool was_dynamic = state.loss_scale != 1.0 || state.loss_scale_hysteresis > 0;
  if (!dynamic_ || !was_dynamic) Start(state);
}

void GradScaler::Update(bool overflow, TrainState& state) const {
  if (!dynamic_) return;
  if (overflow) {
    state.loss_scale_good_steps = 0;
    state.loss_scale_hysteresis = std::max<int64_t>(0, state.loss_scale_hysteresis - 1);
    if (state.loss_scale_hysteresis == 0)
      state.loss_scale = std::max(state.loss_scale * 0.5, config_.min_loss_scale);
    return;
  }
  if (++state.loss_scale_good_steps < config_.loss_scale_window) return;
  state.loss_scale_good_steps = 0;
  state.loss_scale_hysteresis = config_.hysteresis;
  state.loss_scale *= 2.0;
}

}  // namespace cairn
