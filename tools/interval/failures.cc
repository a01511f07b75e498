#include "tools/interval/failures.h"

#include <algorithm>
#include <cmath>

#include "ckpt/model/save_interval.h"

namespace cairn {
namespace {

constexpr double kTail = 0.05;      // on each side of an interval
constexpr double kNormal = 1.6449;  // deviations of the normal distribution that leave as much
constexpr int64_t kMany = 300;      // counts from here on are approximated
constexpr double kMonthSeconds = 30 * 86400.0;

// The chance of exactly `count` where `mean` are expected.
double Exactly(int64_t count, double mean) {
  const auto n = static_cast<double>(count);
  return std::exp(n * std::log(mean) - mean - std::lgamma(n + 1));
}

double AtMost(int64_t count, double mean) {
  if (mean <= 0) return 1;
  double sum = 0;
  for (int64_t k = 0; k <= count; ++k) sum += Exactly(k, mean);
  return std::min(1.0, sum);
}

// The mean of which at most `count` come with this chance: kTail or 1 - kTail. Large ones by Wilson and
// Hilferty (1931), to a thousandth of a percent.
double MeanOf(int64_t count, double chance) {
  if (count >= kMany) {
    const auto n = static_cast<double>(count + 1);
    const double deviations = chance < 0.5 ? kNormal : -kNormal;
    return n * std::pow(1 - 1 / (9 * n) + deviations / (3 * std::sqrt(n)), 3);
  }
  double low = 0, high = 10 + 4 * static_cast<double>(count);
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (AtMost(count, middle) > chance ? low : high) = middle;
  }
  return low;
}

int64_t Quantile(double mean, double chance) {
  double sum = 0;
  for (int64_t count = 0;; ++count)
    if ((sum += Exactly(count, mean)) >= chance || static_cast<double>(count) > 2 * mean + 100) return count;
}

}  // namespace

FailureRate RateOf(int64_t count, double seconds, double prior_seconds) {
  FailureRate rate;
  if (seconds > 0) {
    rate.low = count == 0 ? 0 : MeanOf(count - 1, 1 - kTail) / seconds;
    rate.high = MeanOf(count, kTail) / seconds;
  }
  rate.expected = count > 0 ? static_cast<double>(count) / seconds : 1 / (seconds + prior_seconds);
  if (seconds <= 0) rate.high = rate.expected;
  return rate;
}

FailureRate RatesOfAMonth(double rate) {
  // The sum of n losses that are even between 0 and twice their mean varies as a count of 3/4 n.
  const double mean = 0.75 * rate * kMonthSeconds;
  if (!(mean > 0)) return {rate, rate, rate};
  if (mean > static_cast<double>(kMany)) {  // as a normal distribution
    const double width = kNormal / std::sqrt(mean);
    return {rate, rate * (1 - width), rate * (1 + width)};
  }
  const auto of = [&](double chance) { return rate * static_cast<double>(Quantile(mean, chance)) / mean; };
  return {rate, of(kTail), of(1 - kTail)};
}

FailureRates RatesOf(const FailureRecord& record, int64_t nodes, std::optional<double> node_mtbf_hours) {
  FailureRates rates;
  const double prior_seconds = kNodeMtbfHours * 3600 / static_cast<double>(nodes);
  rates.total = node_mtbf_hours ? RatesOfAMonth(static_cast<double>(nodes) / (*node_mtbf_hours * 3600))
                                : RateOf(record.count(), record.seconds, prior_seconds);
  rates.shares_assumed = !record.kinds_known();
  const auto count = static_cast<double>(record.count());
  for (size_t kind = 0; kind < kFailureKinds; ++kind) {
    const double share = rates.shares_assumed
                             ? kFailureShares[kind]
                             : (static_cast<double>(record.seen[kind]) + kFailureShares[kind]) / (count + 1);
    const FailureRate& all = rates.total;
    FailureRate& rate = rates.of[kind];
    if (node_mtbf_hours)
      rate = RatesOfAMonth(all.expected * share);
    else if (rates.shares_assumed)
      rate = {all.expected * share, all.low * share, all.high * share};
    else
      rate = RateOf(record.seen[kind], record.seconds, prior_seconds);
    rate.expected = all.expected * share;
  }
  return rates;
}

}  // namespace cairn
