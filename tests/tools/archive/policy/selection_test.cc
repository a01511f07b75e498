#include "tools/archive/policy/selection.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

constexpr int64_t kDay = 86400;

std::vector<TimelineStep> Timeline(int steps, int64_t seconds_apart = 0) {
  std::vector<TimelineStep> timeline;
  for (int i = 1; i <= steps; ++i) timeline.push_back({i * 100, i * 1000, 1'700'000'000 + i * seconds_apart});
  return timeline;
}

std::vector<int64_t> Kept(const std::vector<TimelineStep>& timeline, const KeepClass& keep) {
  std::vector<int64_t> steps;
  for (const auto& [step, wanted] : SelectSteps(timeline, {keep}))
    if (wanted.full) steps.push_back(step);
  return steps;
}

TEST(SelectionTest, EachClassKeepsItsSteps) {
  EXPECT_EQ(Kept(Timeline(10), {.every = 500}), (std::vector<int64_t>{500, 1000}));
  EXPECT_EQ(Kept(Timeline(10), {.last = 3}), (std::vector<int64_t>{800, 900, 1000}));
  EXPECT_EQ(Kept(Timeline(2), {.last = 3}), (std::vector<int64_t>{100, 200}));
  EXPECT_EQ(Kept(Timeline(10), {.steps = {300, 350}}), (std::vector<int64_t>{300}));
  EXPECT_EQ(Kept(Timeline(10), {.tokens = 2500}), (std::vector<int64_t>{300, 500, 800, 1000}));
}

TEST(SelectionTest, TagsAreGlobsOfTheNamesOfSteps) {
  std::vector<TimelineStep> timeline = Timeline(4);
  timeline[1].tags = {"best"};
  timeline[2].tags = {"release-1", "x"};
  EXPECT_EQ(Kept(timeline, {.tags = {"best", "release-*"}}), (std::vector<int64_t>{200, 300}));
  EXPECT_EQ(Kept(timeline, {.tags = {"*"}}).size(), 2u);
  EXPECT_EQ(SelectSteps(timeline, {{.tags = {"b*"}}}).at(200).reasons,
            (std::vector<std::string>{"full tagged best"}));
  EXPECT_TRUE(MayAskLater(timeline, {{.tags = {"other"}}}));
}

TEST(SelectionTest, CalendarClassesKeepTheNewestOfEachPeriod) {
  const auto twice_a_day = Timeline(8, kDay / 2);
  const auto daily = Kept(twice_a_day, {.daily = 2});
  ASSERT_EQ(daily.size(), 2u);
  EXPECT_EQ(daily.back(), 800);
  EXPECT_LE(daily.front(), 700);
  EXPECT_EQ(Kept(Timeline(4, 40 * kDay), {.monthly = 12}).size(), 4u);
  EXPECT_EQ(Kept(Timeline(4, 8 * kDay), {.weekly = 3}), (std::vector<int64_t>{200, 300, 400}));
}

TEST(SelectionTest, KeepsEveryRequestedFormAndRecordsTheReason) {
  const auto wanted =
      SelectSteps(Timeline(4), {{.keep = Form::kFull, .every = 200}, {.keep = Form::kWeights, .every = 100}});
  EXPECT_TRUE(wanted.at(200).full && wanted.at(200).weights);
  EXPECT_TRUE(!wanted.at(100).full && wanted.at(100).weights);
  EXPECT_EQ(wanted.at(200).reasons, (std::vector<std::string>{"full every 200", "weights-fp16 every 100"}));
}

TEST(SelectionTest, AnUnhealthyStepTakesNoPlaceOfAHealthyOne) {
  auto timeline = Timeline(4);
  timeline[3].healthy = timeline[1].healthy = false;
  EXPECT_EQ(Kept(timeline, {.last = 2}), (std::vector<int64_t>{100, 300}));
  EXPECT_EQ(Kept(timeline, {.every = 200}), std::vector<int64_t>());
  EXPECT_EQ(Kept(timeline, {.steps = {400}}), std::vector<int64_t>());
  EXPECT_EQ(SelectSteps(timeline, {}).size(), 4u);
}

TEST(SelectionTest, AClassMayAskLater) {
  EXPECT_TRUE(MayAskLater(Timeline(2), {{.every = 500}}));
  EXPECT_FALSE(MayAskLater(Timeline(2), {{.every = 150}}));
  EXPECT_TRUE(MayAskLater(Timeline(2), {{.every = 150}, {.steps = {201}}}));
  EXPECT_FALSE(MayAskLater(Timeline(2), {{.steps = {150}}}));
  EXPECT_TRUE(MayAskLater(Timeline(2), {{.tokens = 2001}}));
}

}  // namespace
}  // namespace cairn
