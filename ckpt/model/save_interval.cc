// Tier by tier, all other intervals being fixed: a scan over the whole range in steps of a tenth, then one
// around the best. The loss has one minimum along each tier, so few rounds are needed.

#include "ckpt/model/save_interval.h"

#include <algorithm>
#include <cmath>

namespace cairn {
namespace {

constexpr double kMostSteps = 1e9;
constexpr int kRounds = 12;

double LeastSteps(const SaveTier& tier, double step_seconds) {
  const double behind = std::max(0.0, tier.save_seconds - tier.stall_seconds);
  return std::clamp(std::ceil(behind / step_seconds), 1.0, kMostSteps);
}

// Sets one interval; those after it stay as near as multiples allow.
std::vector<int64_t> With(std::span<const SaveTier> tiers, std::vector<int64_t> intervals, size_t tier,
                          double steps, double step_seconds) {
  intervals[tier] = std::llround(steps);
  for (size_t i = tier; i < tiers.size(); ++i) {
    const int64_t unit = i == 0 ? 1 : intervals[i - 1];
    const auto times = [unit](double value) { return value / static_cast<double>(unit); };
    const double least = std::ceil(times(LeastSteps(tiers[i], step_seconds)));
    intervals[i] = unit * std::llround(std::max({1.0, least, times(static_cast<double>(intervals[i]))}));
  }
  return intervals;
}

// The logarithm of the seconds that one second of training takes: with failures faster than saves, the
// seconds exceed all numbers.
double LogSlower(std::span<const SaveTier> tiers, std::span<const int64_t> intervals, double step_seconds) {
  double log_slower = 0;
  for (size_t i = 0; i < tiers.size(); ++i) {
    const SaveTier& tier = tiers[i];
    const double useful = static_cast<double>(intervals[i]) * step_seconds, rate = tier.failures_per_second;
    const double period = useful * std::exp(log_slower) + tier.stall_seconds;
    const double behind = std::max(0.0, tier.save_seconds - tier.stall_seconds), failures = rate * period;
    log_slower = rate > 0 ? (failures > 40 ? failures : std::log(std::expm1(failures))) +
                                rate * (behind + tier.resume_seconds) - std::log(rate * useful)
                          : std::log(period / useful);
  }
  return log_slower;
}

}  // namespace

LostTime ExpectedLoss(std::span<const SaveTier> tiers, std::span<const int64_t> intervals,
                      double step_seconds) {
  const double slower = std::exp(LogSlower(tiers, intervals, step_seconds));
  LostTime lost;
  for (size_t i = 0; i < tiers.size(); ++i) {
    lost.saves += tiers[i].stall_seconds / (static_cast<double>(intervals[i]) * step_seconds);
    lost.restarts += tiers[i].failures_per_second * tiers[i].resume_seconds;
  }
  lost.total = 1 - 1 / slower;
  lost.saves = std::min(lost.saves / slower, lost.total);
  lost.restarts = std::min(lost.restarts, lost.total - lost.saves);
  return lost;
}

std::vector<int64_t> BestIntervals(std::span<const SaveTier> tiers, double step_seconds) {
  step_seconds = std::max(step_seconds, 1e-9);  // steps too short to measure
  std::vector<int64_t> best(tiers.size(), 1);
  for (size_t i = 0; i < tiers.size(); ++i) {  // Young's
    const double failure_seconds = 1 / std::max(1e-30, tiers[i].failures_per_second);
    const double seconds = std::sqrt(2 * tiers[i].stall_seconds * failure_seconds);
    best = With(tiers, best, i, std::clamp(seconds / step_seconds, 1.0, kMostSteps), step_seconds);
  }
  double least = LogSlower(tiers, best, step_seconds);
  const auto keep_if_better = [&](size_t tier, double steps) {
    std::vector<int64_t> tried = With(tiers, best, tier, steps, step_seconds);
    const double loss = LogSlower(tiers, tried, step_seconds);
    if (!(loss < least)) return;
    least = loss;
    best = std::move(tried);
  };
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<int64_t> before = best;
    for (size_t tier = 0; tier < tiers.size(); ++tier) {
      for (double steps = 1; steps <= kMostSteps; steps = std::max(steps + 1, steps * 1.1))
        keep_if_better(tier, std::floor(steps));
      const double unit = tier == 0 ? 1 : static_cast<double>(best[tier - 1]);
      const double middle = static_cast<double>(best[tier]), width = std::max(unit, middle / 500);
      for (int i = -50; i <= 50; ++i) keep_if_better(tier, std::clamp(middle + i * width, 1.0, kMostSteps));
    }
    if (best == before) break;
  }
  return best;
}

int64_t SaveInterval(double save_seconds, double failure_seconds, double step_seconds) {
  const SaveTier tier{.stall_seconds = save_seconds,
                      .save_seconds = save_seconds,
                      .failures_per_second = 1 / failure_seconds};
  return BestIntervals({&tier, 1}, step_seconds).front();
}

}  // namespace cairn
