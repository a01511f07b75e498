// How often a training fails, from what was observed of it, and how sure that is.
//
// Failures are a Poisson process. The interval of a rate is the exact one of a Poisson count (Garwood 1936).
// Where none was observed, the rate is that of kNodeMtbfHours as if one failure had been observed in as many
// hours of a node. Its share of a kind is that of the record, to which one failure of the usual kinds
// (kFailureShares) is added: a kind that was not seen yet is still expected.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace cairn {

// By what survives: all nodes, all but one, fewer.
enum class FailureKind { kProcess, kNode, kSeveral };
inline constexpr size_t kFailureKinds = 3;
inline constexpr std::array<const char*, kFailureKinds> kFailureNames = {"process", "node", "several nodes"};

struct FailureRecord {
  std::array<int64_t, kFailureKinds> seen = {};
  int64_t of_unknown_kind = 0;
  double seconds = 0;  // of training, in which they were seen

  int64_t count() const { return seen[0] + seen[1] + seen[2] + of_unknown_kind; }
  bool kinds_known() const { return of_unknown_kind == 0 && count() > 0; }
};

// Failures per second.
struct FailureRate {
  double expected = 0;
  double low = 0, high = 0;  // 9 of 10 such intervals contain the true rate
};

// The rate of `count` failures in `seconds`; without a failure that of the prior, which is one failure in
// `prior_seconds`.
FailureRate RateOf(int64_t count, double seconds, double prior_seconds);

// The rates that a month of 30 days shows, 9 times of 10, if the true one is `rate`. Not only the count of
// failures varies, but also what each of them loses: up to twice the mean.
FailureRate RatesOfAMonth(double rate);

struct FailureRates {
  std::array<FailureRate, kFailureKinds> of;
  FailureRate total;
  bool shares_assumed = false;
};

// `node_mtbf_hours`: given, instead of the record.
FailureRates RatesOf(const FailureRecord& record, int64_t nodes, std::optional<double> node_mtbf_hours);

}  // namespace cairn
