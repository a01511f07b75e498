#include "tools/interval/failures.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

// The intervals of tables of the Poisson distribution: 90 %, both sides.
TEST(FailuresTest, BoundsAreTheExactOnesOfACount) {
  struct Row {
    int64_t count;
    double low, high;
  };
  const Row table[] = {
      {0, 0, 2.9957},         {1, 0.0513, 4.7439},       {3, 0.8177, 7.7537},        {10, 5.4254, 16.9622},
      {100, 84.139, 118.079}, {299, 271.1376, 329.0468}, {1000, 948.5598, 1053.6031}};
  for (const auto& [count, low, high] : table) {
    const FailureRate rate = RateOf(count, 1.0, 1.0);
    EXPECT_NEAR(rate.low, low, 2e-3) << count;
    EXPECT_NEAR(rate.high, high, 2e-3) << count;
    EXPECT_DOUBLE_EQ(rate.expected, count > 0 ? static_cast<double>(count) : 0.5);
  }
}

TEST(FailuresTest, WithoutAFailureThePriorCountsAsOneBefore) {
  const FailureRates rates = RatesOf({.seconds = 3600}, 10, std::nullopt);
  EXPECT_DOUBLE_EQ(rates.total.expected, 1 / (3600 + 500 * 3600.0));
  EXPECT_EQ(rates.total.low, 0);
  EXPECT_LT(rates.total.expected, rates.total.high);
  EXPECT_TRUE(rates.shares_assumed);
}

TEST(FailuresTest, SharesComeFromTheRecordIfItKnowsTheKinds) {
  const FailureRates known = RatesOf({.seen = {6, 3, 1}, .seconds = 1000}, 10, std::nullopt);
  EXPECT_FALSE(known.shares_assumed);
  EXPECT_DOUBLE_EQ(known.of[0].expected, 0.01 * 6.15 / 11);
  EXPECT_NEAR(known.of[0].low, RateOf(6, 1000, 1).low, 1e-12);
  EXPECT_DOUBLE_EQ(RatesOf({.seen = {4}, .seconds = 1000}, 10, std::nullopt).of[2].expected,
                   0.004 * 0.15 / 5);
  const FailureRates given = RatesOf({.seen = {6, 3, 1}, .seconds = 1000}, 10, 1.0);
  EXPECT_DOUBLE_EQ(given.total.expected, 10 / 3600.0);
  EXPECT_DOUBLE_EQ(given.of[1].expected, 10 / 3600.0 * 3.7 / 11);
  const FailureRates unknown = RatesOf({.of_unknown_kind = 10, .seconds = 1000}, 10, std::nullopt);
  EXPECT_DOUBLE_EQ(unknown.of[2].expected, 0.0015);
}

TEST(FailuresTest, AMonthOfManyFailuresVariesLittle) {
  const FailureRate few = RatesOfAMonth(2 / (720 * 3600.0)), many = RatesOfAMonth(1.0);
  EXPECT_EQ(few.low, 0);
  EXPECT_GT(few.high, 2 * few.expected);
  EXPECT_GT(many.low, 0.99);
  EXPECT_LT(many.high, 1.01);
}

}  // namespace
}  // namespace cairn
