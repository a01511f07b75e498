#include "ckpt/run/run_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "ckpt/base/this_process.h"
#include "ckpt/io/directory_room.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/tensor.h"
#include "ckpt/run/branch.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

std::vector<int64_t> Retired(const std::vector<StepFacts>& steps, const RetentionPolicy& policy) {
  return StepsToRetire({.steps = steps, .unreadable = {}, .newest = NewestCommit(steps, {})}, policy);
}

TEST(RetentionTest, KeepsTheUnionOfAllRulesAndTheNewestStep) {
  std::vector<StepFacts> steps;
  for (int64_t step = 10; step <= 100; step += 10) steps.push_back({step, step * 100});
  EXPECT_EQ(Retired(steps, {}), std::vector<int64_t>{});
  EXPECT_EQ(Retired(steps, {.keep_last = 8}), (std::vector<int64_t>{10, 20}));
  EXPECT_EQ(Retired(steps, {.keep_last = 1, .keep_every = 30}),
            (std::vector<int64_t>{10, 20, 40, 50, 70, 80}));
  EXPECT_EQ(Retired(steps, {.keep_every = 1000}), (std::vector<int64_t>{10, 20, 30, 40, 50, 60, 70, 80}));
  // Token milestones at 2500, 5000, 7500, 10000: the first steps at or after them are 30, 50, 80, 100.
  EXPECT_EQ(Retired(steps, {.keep_tokens = 2500}), (std::vector<int64_t>{10, 20, 40, 60, 70}));
}

TEST(RetentionTest, KeepsTheBestStepsByValidationLoss) {
  std::vector<StepFacts> steps;
  const std::vector<std::optional<double>> losses = {3.0, 2.0,          std::nullopt, 1.0,
                                                     2.0, std::nan(""), 9.0,          9.0};
  for (size_t i = 0; i < losses.size(); ++i)
    steps.push_back({.step = static_cast<int64_t>(i + 1) * 10, .validation_loss = losses[i]});
  EXPECT_EQ(Retired(steps, {.keep_best = 1}), (std::vector<int64_t>{10, 20, 30, 50, 60}));
  // The newer one of the two with a loss of 2.
  EXPECT_EQ(Retired(steps, {.keep_best = 2}), (std::vector<int64_t>{10, 20, 30, 60}));
  steps[3].unhealthy = "it diverged";
  EXPECT_EQ(Retired(steps, {.keep_best = 1}), (std::vector<int64_t>{10, 20, 30, 40, 60}));
}

TEST(RetentionTest, KeepsTheFirstStepOfEachEpoch) {
  std::vector<StepFacts> steps;
  for (int64_t i = 1; i <= 9; ++i) steps.push_back({.step = i, .epoch = i / 2});  // 0 1 1 2 2 3 3 4 4
  EXPECT_EQ(Retired(steps, {.keep_epochs = 1}), (std::vector<int64_t>{1, 3, 5, 7}));
  EXPECT_EQ(Retired(steps, {.keep_epochs = 2}), (std::vector<int64_t>{1, 2, 3, 5, 6, 7}));
}

struct RetentionCase {
  const char* name;
  std::vector<int64_t> steps;
  std::vector<int64_t> unhealthy;
  RetentionPolicy policy;
  std::vector<int64_t> retired;
};

class HealthyRetentionTest : public testing::TestWithParam<RetentionCase> {};

TEST_P(HealthyRetentionTest, RetiresSteps) {
  const RetentionCase& c = GetParam();
  std::vector<StepFacts> steps;
  for (const int64_t step : c.steps)
    steps.push_back({step, step * 100, std::ranges::count(c.unhealthy, step) > 0 ? "bad" : ""});
  EXPECT_EQ(Retired(steps, c.policy), c.retired);
}

INSTANTIATE_TEST_SUITE_P(
    Table, HealthyRetentionTest,
    testing::Values(
        RetentionCase{"none", {}, {}, {.keep_last = 1}, {}},
        RetentionCase{"only_one", {2}, {}, {.keep_last = 1}, {}},
        RetentionCase{"the_second_newest_stays_until_confirmed", {2, 4, 6}, {}, {.keep_last = 1}, {2}},
        RetentionCase{"confirmed_by_a_later_step", {2, 4, 6, 8}, {8}, {.keep_last = 1}, {2, 4}},
        RetentionCase{"unhealthy_steps_push_nothing_out", {2, 4, 6, 8}, {6, 8}, {.keep_last = 2}, {}},
        RetentionCase{"evidence_stays", {2, 4, 6, 8, 10}, {6, 8, 10}, {.keep_last = 1}, {2}},
        RetentionCase{
            "evidence_goes_with_a_newer_healthy_step", {2, 4, 6, 8, 10}, {4, 6}, {.keep_last = 2}, {2, 4, 6}},
        RetentionCase{"no_healthy_step", {2, 4, 6, 8}, {2, 4, 6, 8}, {.keep_last = 1}, {}},
        RetentionCase{"keep_every_counts_healthy_ones", {2, 4, 6, 8, 10}, {4}, {.keep_every = 4}, {2, 4, 6}},
        RetentionCase{"a_milestone_passes_on_to_the_next_healthy_step",
                      {10, 30, 40, 60, 70},
                      {30},
                      {.keep_tokens = 2500},
                      {10, 30}},
        RetentionCase{"disabled", {2, 4, 6}, {4}, {}, {}}),
    [](const auto& info) { return info.param.name; });

// A save: its number, and which earlier save (an index) it descends from (-1: not known).
struct Commit {
  int64_t step = 0;
  int64_t origin = -1;
};

// The steps that exist after these saves.
std::vector<StepFacts> Committed(const std::vector<Commit>& saves) {
  std::vector<BranchedStep> commits;
  std::vector<StepFacts> facts;
  for (const auto& [step, origin] : saves) {
    const auto newest = NewestCommit(facts, {});
    const auto from = origin < 0 ? std::nullopt : std::optional(commits[static_cast<size_t>(origin)]);
    commits.push_back({step, "run", NextDescent(step, "run", newest, from)});
    std::erase_if(facts, [&](const StepFacts& before) { return before.step == step; });
    facts.push_back({.step = step, .run = "run", .descent = commits.back().descent});
  }
  for (StepFacts& step : facts) step.lineage = LineageOf(step.commit(), commits.back());
  std::ranges::sort(facts, {}, &StepFacts::step);
  return facts;
}

TEST(NewestCommitTest, AnUnreadableStepIsTheNewestOnlyWithEvidence) {
  const std::vector<StepFacts> facts = Committed({{10}, {20, 0}, {30, 1}, {40, 2}});
  const auto newest = [&](std::optional<int64_t> latest, std::vector<int64_t> unreadable) {
    return NewestCommit(facts, {{"run"}, latest, std::move(unreadable), {}})->step;
  };
  EXPECT_EQ(newest({}, {11}), 40);
  EXPECT_EQ(newest(11, {11}), 11);  // `latest` names it: the training went back
  EXPECT_EQ(newest(11, {}), 40);    // removed by hand
  EXPECT_EQ(newest(30, {30}), 40);  // 40 descends from it: `latest` was not updated
  EXPECT_EQ(newest({}, {45}), 45);
  EXPECT_EQ(newest(40, {45}), 40);  // abandoned before 40 was saved
  EXPECT_EQ(newest(45, {11, 45}), 45);

  const auto torn = NewestCommit(facts, {{"run"}, 11, {11}, {}});
  std::vector<int64_t> current;
  for (const StepFacts& step : facts)
    if (LineageOf(step.commit(), *torn) == Lineage::kCurrent) current.push_back(step.step);
  EXPECT_EQ(current, std::vector<int64_t>{10});
  EXPECT_EQ(NewestCommit({}, {.unreadable = {30}}), (BranchedStep{.step = 30}));
  EXPECT_EQ(NewestCommit({}, {}), std::nullopt);
}

TEST(NewestCommitTest, PrefersStepsOfTheOwner) {
  const std::vector<StepFacts> facts = {{.step = 8, .run = "own"}, {.step = 50, .run = "other"}};
  EXPECT_EQ(NewestCommit(facts, {.runs = {"new", "own"}})->step, 8);
  EXPECT_EQ(NewestCommit(facts, {.runs = {"none"}})->step, 50);
}

TEST(DescentTest, ACopyDescendsFromTheStepsItWasCopiedWith) {
  const BranchedStep first{40, "old", {.branches = {{"old", 30}}}};
  const BranchedStep copied{50, "new", NextDescent(50, "new", first, first)};
  EXPECT_EQ(copied.descent.branches, (std::vector<EarlierBranch>{{"old", 30}, {"old", 40}}));
  EXPECT_EQ(LineageOf({30, "old"}, copied), Lineage::kCurrent);
  EXPECT_EQ(LineageOf({35, "old"}, copied), Lineage::kSuperseded);
  EXPECT_EQ(LineageOf({60, "old", first.descent}, copied), Lineage::kSuperseded);  // saved after the copy
  EXPECT_EQ(LineageOf({3, "stranger", first.descent}, copied), Lineage::kOtherRun);
  EXPECT_EQ(LineageOf({60, "stranger", copied.descent}, copied), Lineage::kOtherRun);
  // A step of another run starts no branch: how the existing steps relate to it is not recorded.
  const BranchedStep stranger{7, "stranger"};
  EXPECT_EQ(NextDescent(60, "new", copied, stranger).branches, copied.descent.branches);
  EXPECT_EQ(NextDescent(60, "new", copied, stranger).origin, stranger.id());
}

struct BranchCase {
  const char* name;
  std::vector<Commit> commits;
  std::vector<int64_t> superseded;
  std::vector<int64_t> retired;  // with keep_last = 2
};

class BranchTest : public testing::TestWithParam<BranchCase> {};

TEST_P(BranchTest, OrdersStepsByCommitNotByNumber) {
  const BranchCase& c = GetParam();
  const std::vector<StepFacts> facts = Committed(c.commits);
  std::vector<int64_t> superseded;
  for (const StepFacts& step : facts)
    if (!step.current()) superseded.push_back(step.step);
  EXPECT_EQ(superseded, c.superseded);
  EXPECT_EQ(NewestCommit(facts, {})->step, c.commits.back().step);
  EXPECT_EQ(Retired(facts, {.keep_last = 2}), c.retired);
}

INSTANTIATE_TEST_SUITE_P(
    Table, BranchTest,
    testing::Values(
        // Unknown origins: the number decides.
        BranchCase{"never_back", {{10}, {20}, {30}}, {}, {10}},
        BranchCase{"one_step_after_going_back", {{10}, {20}, {30}, {40}, {11}}, {20, 30, 40}, {}},
        BranchCase{"two_steps_after_going_back",
                   {{10}, {20}, {30}, {40}, {11}, {12}},
                   {20, 30, 40},
                   {10, 20, 30, 40}},
        BranchCase{"the_same_number_again", {{10}, {20}, {20}}, {}, {}},
        BranchCase{"a_number_that_is_taken", {{10}, {20}, {30}, {40}, {20}}, {30, 40}, {}},
        BranchCase{"back_twice", {{10}, {20}, {30}, {15}, {16}, {12}}, {15, 16, 20, 30}, {}},
        BranchCase{"back_twice_and_on",
                   {{10}, {20}, {30}, {15}, {16}, {12}, {13}},
                   {15, 16, 20, 30},
                   {10, 15, 16, 20, 30}},
        BranchCase{"beyond_all_numbers", {{10}, {20}, {30}, {11}, {12}, {40}}, {20, 30}, {10, 11, 20, 30}},
        // Known origins.
        BranchCase{"forward", {{10}, {20, 0}, {30, 1}}, {}, {10}},
        BranchCase{"back_and_beyond_the_newest", {{10}, {20, 0}, {30, 1}, {40, 2}, {50, 2}}, {40}, {}},
        BranchCase{"back_and_beyond_twice",
                   {{10}, {20, 0}, {30, 1}, {40, 2}, {50, 2}, {60, 4}},
                   {40},
                   {10, 20, 30, 40}},
        BranchCase{
            "back_to_a_superseded_step", {{10}, {20, 0}, {30, 1}, {40, 2}, {11, 0}, {31, 2}}, {11, 40}, {}},
        BranchCase{"back_to_a_superseded_step_and_on",
                   {{10}, {20, 0}, {30, 1}, {40, 2}, {11, 0}, {31, 2}, {32, 5}},
                   {11, 40},
                   {10, 11, 20, 30, 40}},
        BranchCase{"a_lower_number_than_its_origin", {{10}, {20, 0}, {30, 1}, {25, 2}}, {30}, {}}),
    [](const auto& info) { return info.param.name; });

TEST(LayoutTest, StepNamesRoundTripAndMarkedNamesAreNotSteps) {
  EXPECT_EQ(StepDirName(1000), "step-00001000");
  EXPECT_EQ(ParseStepDirName("step-00001000"), 1000);
  EXPECT_EQ(ParseStepDirName(StepDirName(1234567890123)), 1234567890123);
  for (const char* name :
       {"step-1000", "step-00001000.partial-ab", "step--0000001", "step-", "latest", "step-0000100x"})
    EXPECT_EQ(ParseStepDirName(name), std::nullopt) << name;
  EXPECT_EQ(ParseMarkedDirName(PartialDirName(3, "ab")), "partial");
  EXPECT_EQ(ParseMarkedDirName(DeletingDirName(3, "ab")), "deleting");
  EXPECT_EQ(ParseMarkedDirName("step-00000003"), std::nullopt);
  EXPECT_EQ(ParseMarkedDirName("notes.partial-x"), std::nullopt);
}

TEST(LayoutTest, PieceNamesHaveBoxAndRange) {
  TensorEntry tensor;
  tensor.spec.name = "w";
  EXPECT_EQ(PiecePath(tensor, {{4, 0}, {2, 3}}, {0, 6}), "/weight/w@4,0");
  EXPECT_EQ(PiecePath(tensor, {{4, 0}, {2, 3}}, {2, 6}), "/weight/w@4,0+2");
}

// Before its first step a training asks for what its second save needs.
TEST(RoomForStepsTest, CountsAKeptStepUnlessItExists) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir dir;
  const std::string run = dir / "run";
  const std::vector<RoomLimit> limits = {{{1000, 1000}, "free"}, {{150, 20}, "left of the quota of user 7"}};
  EXPECT_EQ(CheckRoomForSteps(fs, run, {.bytes = 100, .files = 3}, limits).message(),
            "no room for a step and one that is kept: " + run +
                ": needs about 200 bytes, but only 150 are left of the quota of user 7; free some space or "
                "choose another path");
  EXPECT_EQ(CheckRoomForSteps(fs, run, {.bytes = 501, .files = 3}, limits).message(),
            "no room for a step and one that is kept: " + run +
                ": needs about 1002 bytes, but only 1000 are free; free some space or choose another path");
  EXPECT_TRUE(CheckRoomForSteps(fs, run, {.bytes = 75, .files = 8}, limits).ok());
  EXPECT_EQ(CheckRoomForSteps(fs, run, {.bytes = 75, .files = 9}, limits).kind(), StatusKind::kNoSpace);
  std::filesystem::create_directories(run + "/step-00000001");
  EXPECT_TRUE(CheckRoomForSteps(fs, run, {.bytes = 150, .files = 18}, limits).ok());
  EXPECT_EQ(CheckRoomForSteps(fs, run, {.bytes = 151, .files = 3}, limits).kind(), StatusKind::kNoSpace);
}

TEST(RunLockTest, DetectsThatTheRunDirectoryWasReplaced) {
  const TempDir temp(TempDir::Place::kMemory);
  std::filesystem::create_directory(temp / "a");
  const auto lock = RunLock::Take(FileSystem::Posix(), temp / "a");
  ASSERT_TRUE(lock.ok());
  EXPECT_TRUE(lock->CheckPlace().ok());
  std::filesystem::rename(temp / "a", temp / "b");
  EXPECT_FALSE(lock->CheckPlace().ok());
  std::filesystem::create_directory(temp / "a");
  const auto second = RunLock::Take(FileSystem::Posix(), temp / "a");
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(lock->CheckPlace().ok());
  EXPECT_TRUE(second->CheckPlace().ok());
}

TEST(RunLockTest, AWaitingProcessReportsTheHolder) {
  const TempDir temp(TempDir::Place::kMemory);
  std::optional<RunLock> holder = RunLock::Take(FileSystem::Posix(), temp.path()).value();
  const std::string who = fmt::format("pid {} on {}", ::getpid(), HostName());
  EXPECT_THAT(RunLock::Take(FileSystem::Posix(), temp.path()).status().message(), testing::HasSubstr(who));
  const auto waiting = [&](const Status& why, std::chrono::seconds more) {
    EXPECT_TRUE(more > std::chrono::seconds(0) && more <= std::chrono::minutes(2)) << more.count();
    EXPECT_THAT(why.message(), testing::HasSubstr(who));
    holder.reset();
  };
  const auto lock = RunLock::Hold(FileSystem::Posix(), temp.path(), [](const Status&) {},
                                  {.patience = [] { return std::chrono::minutes(2); }, .waiting = waiting});
  ASSERT_TRUE(lock.ok()) << lock.status().message();
  EXPECT_FALSE(holder);
  EXPECT_TRUE(lock->CheckHeld().ok());
}

}  // namespace
}  // namespace cairn
