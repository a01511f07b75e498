#include "ckpt/run/local_branch.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

const std::string kOneRun = "r";

BranchedStep CommitOf(int64_t step, std::vector<EarlierBranch> branches) {
  return {step, kOneRun, {.branches = std::move(branches)}};
}

// The next commit of a training that comes from `newest` and does not see local steps up to a branch.
BranchedStep NextOf(int64_t step, const std::optional<BranchedStep>& newest, int64_t unseen) {
  return {step, kOneRun,
          AfterLocalBranch(NextDescent(step, kOneRun, newest, newest), step, kOneRun, newest, unseen)};
}

TEST(LocalBranchTest, UnseenStepsAreGivenUpAndTheRunsAreCurrent) {
  const BranchedStep in_run = CommitOf(3, {});
  const BranchedStep next = NextOf(4, in_run, 0);
  EXPECT_EQ(LineageOf(in_run, next), Lineage::kCurrent);
  EXPECT_EQ(LineageOf(CommitOf(4, {}), next), Lineage::kSuperseded);
  EXPECT_EQ(LineageOf(CommitOf(5, {}), next), Lineage::kSuperseded);
  const BranchedStep after = NextOf(5, next, 0);  // continues
  EXPECT_EQ(after.branch(), next.branch());
  EXPECT_EQ(LineageOf(in_run, after), Lineage::kCurrent);
  EXPECT_EQ(LineageOf(next, after), Lineage::kCurrent);
}

// They had gone back twice since the run's newest step.
TEST(LocalBranchTest, UnseenBranchesAreGivenUpToo) {
  const BranchedStep in_run = CommitOf(3, {});
  const BranchedStep local = CommitOf(9, {{kOneRun, 2}, {kOneRun, 5}});
  const BranchedStep next = NextOf(4, in_run, local.branch());
  EXPECT_GT(next.branch(), local.branch());
  EXPECT_EQ(LineageOf(local, next), Lineage::kSuperseded);
  EXPECT_EQ(LineageOf(CommitOf(5, {{kOneRun, 2}}), next), Lineage::kSuperseded);
  EXPECT_EQ(LineageOf(in_run, next), Lineage::kCurrent);
}

TEST(LocalBranchTest, ARunWithoutStepsGivesUpAllLocalOnes) {
  const BranchedStep next = NextOf(1, std::nullopt, 0);
  EXPECT_EQ(LineageOf(CommitOf(1, {}), next), Lineage::kSuperseded);
  EXPECT_EQ(LineageOf(CommitOf(7, {}), next), Lineage::kSuperseded);
}

TEST(LocalBranchTest, WithoutUnseenStepsNothingChanges) {
  EXPECT_EQ(NextOf(4, CommitOf(3, {}), -1).branch(), 0);
  EXPECT_EQ(NextOf(1, std::nullopt, -1).branch(), 0);
}

TEST(LocalBranchTest, TheNoteOnlyGrows) {
  const TempDir dir(TempDir::Place::kMemory);
  FileSystem& fs = FileSystem::Posix();
  EXPECT_EQ(*LocalBranch(fs, dir.path()), -1);
  for (const auto& [noted, then] : {std::pair(0, 0), {2, 2}, {1, 2}}) {
    ASSERT_TRUE(NoteLocalBranch(fs, dir.path(), noted).ok());
    EXPECT_EQ(*LocalBranch(fs, dir.path()), then);
  }
  for (const char* text : {"", "{}", "3", "{\"branch\":-1}", "{\"branch\":\"2\"}", "{\"branch\":1e9}"}) {
    std::ofstream(dir / "local") << text;
    EXPECT_EQ(LocalBranch(fs, dir.path()).status().kind(), StatusKind::kCorrupt) << text;
  }
}

}  // namespace
}  // namespace cairn
