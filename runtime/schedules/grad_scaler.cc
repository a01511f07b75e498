#include "runtime/schedules/grad_scaler.h"

#include <algorithm>

namespace cairn {

GradScaler::GradScaler(const TrainConfig& config)
    : dynamic_(config.fp16 && config.loss_scale == 0),
      initial_scale_(!config.fp16            ? 1.0
                     : config.loss_scale > 0 ? config.loss_scale
                                             : config.initial_loss_scale),
      min_scale_(config.min_loss_scale),
      window_(config.loss_scale_window),
      hysteresis_(config.hysteresis) {}

void GradScaler::Start(TrainState& state) const {
  state.loss_scale = initial_scale_;
  state.loss_scale_good_steps = 0;
  state.loss_scale_hysteresis = dynamic_ ? hysteresis_ : 0;
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
    if (state.loss_scale_hysteresis == 0) state.loss_scale = std::max(state.loss_scale * 0.5, min_scale_);
    return;
  }
  if (++state.loss_scale_good_steps < window_) return;
  state.loss_scale_good_steps = 0;
  state.loss_scale_hysteresis = hysteresis_;
  state.loss_scale *= 2.0;
}

}  // namespace cairn
