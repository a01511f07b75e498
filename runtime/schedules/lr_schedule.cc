#include "runtime/schedules/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

namespace cairn {

LrSchedule::LrSchedule(const TrainConfig& config, int64_t total_samples)
    : config_(config),
      total_samples_(total_samples),
      lengths_(ScheduleLengthsOf(config, static_cast<double>(total_samples))) {}

// The logarithmic one is DeepSpeed's WarmupLR, over steps of the whole batch.
double LrSchedule::WarmupAt(double now) const {
  const double rise = config_.lr - config_.lr_warmup_init;
  if (config_.lr_warmup_style != "log") return config_.lr_warmup_init + rise * now / lengths_.warmup;
  const auto batch = static_cast<double>(config_.global_batch_size);
  return config_.lr_warmup_init +
         rise * std::log(now / batch + 1.0) / std::log(std::max(2.0, lengths_.warmup / batch));
}

double LrSchedule::At(int64_t scheduled_samples) const {
  const double now = static_cast<double>(scheduled_samples);
  if (now < lengths_.warmup) return WarmupAt(now);
  if (config_.lr_decay_style == "constant") return config_.lr;
  if (now >= lengths_.decay) return config_.min_lr;
  const double progress = (now - lengths_.warmup) / (lengths_.decay - lengths_.warmup);
  const double share = config_.lr_decay_style == "cosine"
                           ? 0.5 * (std::cos(std::numbers::pi * progress) + 1.0)
                           : 1.0 - progress;
  return config_.min_lr + share * (config_.lr - config_.min_lr);
}

// Megatron compares them with its own flags, and its counts are whole, except for a fraction's.
nlohmann::json LrSchedule::Facts() const {
  const auto count = [](double samples) {
    return samples == std::floor(samples) ? nlohmann::json(static_cast<int64_t>(samples))
                                          : nlohmann::json(samples);
  };
  return {{"max_lr", config_.lr},
          {"min_lr", config_.min_lr},
          {"lr_warmup_steps", count(lengths_.warmup)},
          {"lr_decay_steps", count(lengths_.decay)},
          {"lr_decay_style", config_.lr_decay_style},
          {"start_wd", config_.weight_decay},
          {"end_wd", config_.weight_decay},
          {"wd_incr_style", "constant"},
          {"wd_incr_steps", total_samples_}};
}

}  // namespace cairn
