#include "tests/bench/bench_rounds.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(BenchRoundsTest, EachRoundStartsWithTheNextContender) {
  std::string order;
  std::vector<Contender> contenders;
  for (const char* name : {"a", "b", "c"})
    contenders.push_back({name, [&order, name](Samples& samples) {
                            order += name;
                            samples.Add(name, 1, 1);
                            return OkStatus();
                          }});
  const Result<Samples> samples = RunRounds(contenders, 4);
  ASSERT_TRUE(samples.ok());
  EXPECT_EQ(order, "abcbcacababc");
  for (const Series& series : samples->series()) EXPECT_EQ(series.seconds.size(), 4u);
}

TEST(BenchRoundsTest, TheFirstFailureStopsTheRoundsAndNamesTheContender) {
  int runs = 0;
  const std::vector<Contender> contenders = {{"fine",
                                              [&](Samples&) {
                                                ++runs;
                                                return OkStatus();
                                              }},
                                             {"broken", [&](Samples&) { return Corrupt("other bytes"); }}};
  const Result<Samples> samples = RunRounds(contenders, 3);
  ASSERT_FALSE(samples.ok());
  EXPECT_EQ(samples.status().message(), "broken: other bytes");
  EXPECT_EQ(runs, 1);
}

TEST(BenchRoundsTest, RatiosAreMediansOfTheRatiosOfEachRound) {
  // The machine gets slower and slower; ours always takes a quarter more a byte.
  const Series ours{"ours", 2000, {2.5, 5, 25}}, limit{"limit", 1000, {1, 2, 10}};
  const GoalRatio bandwidth = BandwidthGoal("r", "", ours, limit, 0.8),
                  time = TimeGoal("t", "", ours, limit, 1.2);
  EXPECT_DOUBLE_EQ(bandwidth.ratio.median, 0.8);
  EXPECT_DOUBLE_EQ(bandwidth.ratio.min, bandwidth.ratio.max);
  EXPECT_TRUE(bandwidth.met());
  EXPECT_DOUBLE_EQ(time.ratio.median, 1.25);
  EXPECT_FALSE(time.met());
  EXPECT_TRUE(time.noisy) << "the limit moved tenfold";
}

TEST(BenchRoundsTest, MediansAndSpread) {
  EXPECT_DOUBLE_EQ(SpreadOf({3, 1, 2}).median, 2);
  EXPECT_DOUBLE_EQ(SpreadOf({4, 1, 2, 3}).median, 2.5);
  EXPECT_DOUBLE_EQ(SpreadOf({4, 1, 2, 3}).max, 4);
  EXPECT_FALSE((Series{"steady", 1, {1.0, 1.1, 1.14}}.Noisy()));
  EXPECT_TRUE((Series{"moving", 1, {1.0, 1.0, 1.2}}.Noisy()));
}

TEST(BenchRoundsTest, TheFasterOfTwoLimitsIsTheLimit) {
  Samples samples;
  samples.Add("slow", 10, 2);
  EXPECT_EQ(samples.Faster("slow", "fast")->name, "slow") << "the other was not timed";
  samples.Add("fast", 10, 1);
  EXPECT_EQ(samples.Faster("slow", "fast")->name, "fast");
  EXPECT_EQ(samples.Faster("no", "none"), nullptr);
}

}  // namespace
}  // namespace cairn
