#include "ckpt/model/save_interval.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(SaveIntervalTest, MatchesYoungAndDaly) {
  // A save of 28 s, a failure in 100 hours: sqrt(2 * 28 * 360000) - 28 = 4462 s, and 4471 s by Daly's
  // estimate of higher order.
  EXPECT_EQ(SaveInterval(28, 360000, 113), 40);
  EXPECT_NEAR(static_cast<double>(SaveInterval(28, 360000, 1)), 4471, 9);
  EXPECT_EQ(SaveInterval(28, 360000, 1e6), 1);
  EXPECT_EQ(SaveInterval(1000, 10, 1), 10);  // fails faster than it saves
}

TEST(SaveIntervalTest, NeverFailingSavesAsRarelyAsPossible) {
  const SaveTier tier{.stall_seconds = 1, .save_seconds = 1};
  EXPECT_GE(BestIntervals({&tier, 1}, 1).front(), 900'000'000);
}

// Young's loss for an interval T: stall / T + rate * (T / 2 + the rest of the save + the restart).
TEST(ExpectedLossTest, IsYoungsWhenFailuresAreRare) {
  const SaveTier tier{
      .stall_seconds = 2, .save_seconds = 12, .resume_seconds = 300, .failures_per_second = 1e-7};
  const int64_t interval = 1000;
  const LostTime lost = ExpectedLoss({&tier, 1}, {&interval, 1}, 1);
  EXPECT_NEAR(lost.total, 2.0 / 1000 + 1e-7 * (500 + 10 + 300), 1e-5);
  EXPECT_NEAR(lost.saves, 0.002, 1e-5);
  EXPECT_NEAR(lost.restarts, 3e-5, 1e-6);
}

TEST(BestIntervalsTest, TiersNestAndEachSaveEndsBeforeTheNext) {
  const SaveTier tiers[] = {{0.1, 0.5, 60, 1 / 1800.0}, {0, 400, 300, 1 / 36000.0}, {0, 5000, 3000, 1e-8}};
  const std::vector<int64_t> best = BestIntervals(tiers, 3);
  EXPECT_EQ(best[1] % best[0], 0);
  EXPECT_EQ(best[2] % best[1], 0);
  EXPECT_GE(best[1], 134);   // 400 s
  EXPECT_GE(best[2], 1667);  // 5000 s
  EXPECT_LT(best[0], 134);
}

TEST(BestIntervalsTest, NoNeighbourIsBetter) {
  const SaveTier tiers[] = {{0.5, 2, 100, 1 / 36000.0}, {5, 28, 300, 1 / 360000.0}};
  const std::vector<int64_t> best = BestIntervals(tiers, 2);
  const double least = ExpectedLoss(tiers, best, 2).total;
  for (int64_t first = 1; first < 400; ++first)
    for (int64_t times = 1; times < 60; ++times) {
      const std::vector<int64_t> other = {first, first * times};
      if (first * times < 12) continue;  // a save of the second tier would not end before the next
      EXPECT_GE(ExpectedLoss(tiers, other, 2).total, least * 0.9999);
    }
}

}  // namespace
}  // namespace cairn
