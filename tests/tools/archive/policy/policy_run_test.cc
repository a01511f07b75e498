#include "tools/archive/policy/policy_run.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"
#include "tools/archive/store/claims.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

class PolicyRunTest : public testing::Test {
 protected:
  PolicyRunTest() {
    policy_.tag = "nightly";
    policy_.store = dir_ / "store";
    policy_.status = dir_ / "status.json";
    policy_.runs = {dir_ / "gpt"};
    policy_.classes = {{.last = 5}};
    for (const int64_t step : {10, 20}) Make(step);
  }

  void Make(int64_t step) {
    StepRecipe recipe = RecipeOf({.layers = 1, .hidden = 8, .heads = 2, .ffn = 8, .vocab = 8}, {});
    recipe.step = step;
    recipe.run = std::string(32, 'a');
    ASSERT_TRUE(MakeStep(fs_, dir_ / "gpt", recipe).ok());
  }

  // One process carries out the policy.
  RunReport Run() {
    events_.clear();
    PolicyEvents events;
    events.note = [this](const std::string& line) { events_.push_back("note " + line); };
    events.problem = [this](const std::string& line) { events_.push_back("problem " + line); };
    events.stored = [this](const PlanEntry& entry, const ArchiveOutcome&) {
      events_.push_back("stored " + entry.title);
    };
    events.source_removed = [this](const std::string& source) {
      events_.push_back("removed " + stdfs::path(source).filename().string());
    };
    events.pruned = [this](const PruneEntry& entry) { events_.push_back("pruned " + entry.title); };
    const auto find_proof = [this](const std::string& step) -> Result<std::shared_ptr<const DeletionProof>> {
      const stdfs::path path(step);
      CAIRN_ASSIGN_OR_RETURN(HealthySuccessor stays,
                             HealthySuccessor::For(fs_, path.parent_path(), path.filename(),
                                                   [](const std::string&) { return OkStatus(); }));
      return std::shared_ptr<const DeletionProof>(std::make_shared<HealthySuccessor>(std::move(stays)));
    };
    PolicyRun run(fs_, policy_, find_proof, events);
    EXPECT_TRUE(run.Run({}).ok());
    EXPECT_TRUE(run.reported());
    return run.report();
  }

  using Lines = std::vector<std::string>;

  FileSystem& fs_ = FileSystem::Posix();
  TempDir dir_;
  Policy policy_;
  Lines events_;
};

TEST_F(PolicyRunTest, StoresRequestedMembersOnce) {
  RunReport report = Run();
  EXPECT_EQ(report.failures, Lines{});
  EXPECT_EQ(report.stored_members, 2u);
  EXPECT_GT(report.stored_bytes, 0u);
  EXPECT_EQ(report.waiting, 0u);
  EXPECT_EQ(events_, (Lines{"stored gpt@10", "stored gpt@20"}));
  report = Run();
  EXPECT_EQ(report.stored_members, 0u);
  EXPECT_EQ(events_, Lines{});
}

TEST_F(PolicyRunTest, RemovesASourceIfAnotherStepStays) {
  policy_.delete_source = true;
  const RunReport report = Run();
  EXPECT_EQ(report.failures, Lines{});
  EXPECT_EQ(events_, (Lines{"stored gpt@10", "removed step-00000010", "stored gpt@20"}));
  EXPECT_TRUE(stdfs::exists(dir_ / "gpt/step-00000020"));
}

TEST_F(PolicyRunTest, AFailedSourceDoesNotStopTheRun) {
  const std::string shard = dir_ / "gpt/step-00000010/shard-00000.h5";
  stdfs::resize_file(shard, stdfs::file_size(shard) - 1);
  const RunReport report = Run();
  ASSERT_FALSE(report.failures.empty());
  EXPECT_NE(report.failures[0].find("step-00000010"), std::string::npos) << report.failures[0];
  EXPECT_EQ(report.stored_members, 1u);
  EXPECT_EQ(events_.back(), "stored gpt@20");
  EXPECT_FALSE(report.ok());
}

TEST_F(PolicyRunTest, PrunesMembersThatNoClassKeeps) {
  Run();
  policy_.classes = {{.last = 1}};
  policy_.delete_stored = true;
  const RunReport report = Run();
  EXPECT_EQ(report.failures, Lines{});
  EXPECT_EQ(events_, Lines{"pruned gpt@10"});
}

TEST_F(PolicyRunTest, AFullQuotaIsReportedAsAFailure) {
  policy_.quota_bytes = 1000;
  const RunReport report = Run();
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.stored_members, 0u);
  EXPECT_GT(report.waiting, 0u);
}

}  // namespace
}  // namespace cairn
