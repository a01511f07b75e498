#include "runtime/schedules/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "runtime/config/schedule_lengths.h"

namespace cairn {

LrSchedule::LrSchedule(const TrainConfig& config, int64_t total_samples)
    : max_lr_(config.lr),
      min_lr_(config.min_lr),
      warmup_init_(config.lr_warmup_init),
      log_warmup_(config.lr_warmup_style == "log"),
      batch_(static_cast<double>(config.global_batch_size)),
      style_(config.lr_decay_style),
      weight_decay_(config.weight_decay),
      total_samples_(total_samples) {
  const ScheduleLengths lengths = ScheduleLengthsOf(config, static_cast<double>(total_samples));
  decay_samples_ = lengths.decay;
  warmup_samples_ = lengths.warmup;
}

// The logarithmic one is DeepSpeed's WarmupLR, over steps of the whole batch.
double LrSchedule::WarmupAt(double now) const {
  const double rise = max_lr_ - warmup_init_;
  if (!log_warmup_) return warmup_init_ + rise * now / warmup_samples_;
  return warmup_init_ +
         rise * std::log(now / batch_ + 1.0) / std::log(std::max(2.0, warmup_samples_ / batch_));
}

double LrSchedule::At(int64_t scheduled_samples) const {
  const double now = static_cast<double>(scheduled_samples);
  if (now < warmup_samples_) return WarmupAt(now);
  if (style_ == "constant") return max_lr_;
  if (now >= decay_samples_) return min_lr_;
  const double progress = (now - warmup_samples_) / (decay_samples_ - warmup_samples_);
  const double share =
      style_ == "cosine" ? 0.5 * (std::cos(std::numbers::pi * progress) + 1.0) : 1.0 - progress;
  return min_lr_ + share * (max_lr_ - min_lr_);
}

// Megatron compares them with its own flags, and its counts are whole but for a fraction's.
nlohmann::json LrSchedule::Facts() const {
  const auto count = [](double samples) {
    return samples == std::floor(samples) ? nlohmann::json(static_cast<int64_t>(samples))
                                          : nlohmann::json(samples);
  };
  return {{"max_lr", max_lr_},
          {"min_lr", min_lr_},
          {"lr_warmup_steps", count(warmup_samples_)},
          {"lr_decay_steps", count(decay_samples_)},
          {"lr_decay_style", style_},
          {"start_wd", weight_decay_},
          {"end_wd", weight_decay_},
          {"wd_incr_style", "constant"},
          {"wd_incr_steps", total_samples_}};
}

}  // namespace cairn
