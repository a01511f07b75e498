#include "runtime/schedules/lr_schedule.h"

#include <cmath>
#include <numbers>

namespace cairn {

LrSchedule::LrSchedule(const TrainConfig& config, int64_t total_samples)
    : max_lr_(config.lr), min_lr_(config.min_lr), style_(config.lr_decay_style) {
  const double batch = static_cast<double>(config.global_batch_size);
  decay_samples_ = config.lr_decay_samples > 0 ? static_cast<double>(config.lr_decay_samples)
                   : config.lr_decay_iters > 0 ? static_cast<double>(config.lr_decay_iters) * batch
                                               : static_cast<double>(total_samples);
  warmup_samples_ = config.lr_warmup_fraction > 0  ? config.lr_warmup_fraction * decay_samples_
                    : config.lr_warmup_samples > 0 ? static_cast<double>(config.lr_warmup_samples)
                                                   : static_cast<double>(config.lr_warmup_iters) * batch;
}

double LrSchedule::At(int64_t scheduled_samples) const {
  const double now = static_cast<double>(scheduled_samples);
  if (now < warmup_samples_) return max_lr_ * now / warmup_samples_;
  if (style_ == "constant") return max_lr_;
  if (now >= decay_samples_) return min_lr_;
  const double progress = (now - warmup_samples_) / (decay_samples_ - warmup_samples_);
  const double share =
      style_ == "cosine" ? 0.5 * (std::cos(std::numbers::pi * progress) + 1.0) : 1.0 - progress;
  return min_lr_ + share * (max_lr_ - min_lr_);
}

}  // namespace cairn
