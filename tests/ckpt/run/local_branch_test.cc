#include "ckpt/run/local_branch.h"

#include <gtest/gtest.h>

#include <filesystem>
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
  const std::vector<EarlierBranch> branches{{kOneRun, 3}, {kOneRun, -1}, {kOneRun, 7}};
  EXPECT_FALSE(ReadLocalNote(fs, dir.path())->has_value());
  for (const auto& [noted, then] : {std::pair(0, 0), {2, 2}, {1, 2}}) {
    int64_t before = -1;
    const Descent descent{.branches = {branches.begin(), branches.begin() + noted}};
    ASSERT_TRUE(NoteLocalBranch(fs, dir.path(), kOneRun, descent, before).ok());
    EXPECT_EQ(before, noted);
    const BranchedStep note = **ReadLocalNote(fs, dir.path());
    EXPECT_EQ(note, CommitOf(-1, {branches.begin(), branches.begin() + then}));
  }
}

TEST(LocalBranchTest, RefusesOtherFilesOfTheName) {
  const TempDir dir(TempDir::Place::kMemory);
  FileSystem& fs = FileSystem::Posix();
  const auto refused = [&](const char* what) {
    const Status status = ReadLocalNote(fs, dir.path()).status();
    EXPECT_EQ(status.kind(), StatusKind::kCorrupt) << what;
    EXPECT_NE(status.message().find("move it away"), std::string::npos) << status.message();
  };
  for (const char* text : {"", "{}", "3", R"({"run":1})", R"({"run":"r","branches":[{"run":"r"}]})",
                           R"({"run":"r","branches":[{"run":"r","last":"3"}]})"}) {
    std::ofstream(dir / "local") << text;
    refused(text);
  }
  std::filesystem::remove(dir / "local");
  std::filesystem::create_directory(dir / "local");
  refused("a directory");
}

TEST(LocalBranchTest, GivenUpStepsAreSuperseded) {
  const TempDir dir(TempDir::Place::kMemory);
  FileSystem& fs = FileSystem::Posix();
  const BranchedStep in_run = CommitOf(3, {}), old = CommitOf(4, {}), resumed = CommitOf(5, {{kOneRun, 3}}),
                     lost = CommitOf(6, {{kOneRun, 3}});
  ASSERT_TRUE(GiveUpLocalSteps(fs, dir.path(), in_run).ok());
  EXPECT_FALSE(ReadLocalNote(fs, dir.path())->has_value());  // the nodes have none
  const auto current = [&](const BranchedStep& step) {
    return LineageOf(step, **ReadLocalNote(fs, dir.path())) == Lineage::kCurrent;
  };
  int64_t noted = -1;
  ASSERT_TRUE(NoteLocalBranch(fs, dir.path(), kOneRun, resumed.descent, noted).ok());
  EXPECT_TRUE(current(in_run) && current(resumed) && current(lost));
  EXPECT_FALSE(current(old));
  ASSERT_TRUE(GiveUpLocalSteps(fs, dir.path(), resumed).ok());
  EXPECT_TRUE(current(in_run) && current(resumed));
  EXPECT_FALSE(current(old) || current(lost));
  const BranchedStep next = NextOf(6, resumed, BranchOf(*ReadLocalNote(fs, dir.path())));
  EXPECT_EQ(LineageOf(resumed, next), Lineage::kCurrent);
  EXPECT_EQ(LineageOf(lost, next), Lineage::kSuperseded);
  ASSERT_TRUE(NoteLocalBranch(fs, dir.path(), kOneRun, next.descent, noted).ok());
  EXPECT_TRUE(current(resumed) && current(next));
  EXPECT_FALSE(current(lost));
  ASSERT_TRUE(GiveUpLocalSteps(fs, dir.path(), in_run).ok());
  EXPECT_TRUE(current(in_run));
  EXPECT_FALSE(current(resumed) || current(next));
  ASSERT_TRUE(GiveUpLocalSteps(fs, dir.path(), std::nullopt).ok());
  EXPECT_FALSE(current(in_run));
}

}  // namespace
}  // namespace cairn
