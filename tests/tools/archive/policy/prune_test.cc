// Runs by identity and members by claim: what a policy stores, keeps and removes if names do not decide.
#include "tools/archive/policy/prune.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "ckpt/base/canonical_path.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/run_identity.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"
#include "tools/archive/bundle/bundler.h"
#include "tools/archive/policy/policy_plan.h"
#include "tools/archive/store/archiver.h"
#include "tools/archive/store/claims.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

FileSystem& fs = FileSystem::Posix();

std::string Id(char digit) { return std::string(32, digit); }

class PruneTest : public testing::Test {
 protected:
  PruneTest() {
    EXPECT_TRUE(MakeDirs(fs, store_.directory()).ok());
    policy_ = Of("weekly", {dir_ / "e*/gpt"}, {.last = 1});
  }

  Policy Of(const std::string& tag, std::vector<std::string> runs, KeepClass keep) const {
    Policy policy;
    policy.tag = tag;
    policy.store = store_.directory();
    policy.runs = std::move(runs);
    policy.classes = {std::move(keep)};
    return policy;
  }

  // `seed`: other values, so that steps of one number differ.
  void Make(const std::string& run_dir, int64_t step, char id, uint64_t seed = 0) {
    StepRecipe recipe = RecipeOf({.layers = 1, .hidden = 8, .heads = 2, .ffn = 8, .vocab = 8}, {});
    recipe.step = step;
    recipe.run = Id(id);
    recipe.seed = seed == 0 ? static_cast<uint64_t>(id) : seed;
    ASSERT_TRUE(MakeStep(fs, dir_ / run_dir, recipe).ok());
  }

  // Everything that the policy asks for.
  void Run(const Policy& policy) {
    const Plan plan = MakePlan(fs, policy, 0, 0).value();
    ASSERT_TRUE(AddClaim(store_, plan.unclaimed, policy.labels().front()).ok());
    for (const PlanEntry& entry : plan.entries)
      if (entry.stores()) {
        const auto outcome = Archive(store_, {entry.source}, {.claims = {policy.labels().front()}}, {});
        ASSERT_TRUE(outcome.ok()) << outcome.status().message();
      }
  }

  void PruneBy(const Policy& policy, const std::vector<std::string>& adopt = {}) {
    const auto entries = Prune(fs, policy, adopt);
    ASSERT_TRUE(entries.ok()) << entries.status().message();
    why_.clear();
    for (const PruneEntry& entry : *entries) why_[fmt::format("{}@{}", entry.run, entry.step)] = entry.why;
  }

  // "id:step:claims", sorted.
  std::vector<std::string> Stored() const {
    std::vector<std::string> members;
    const auto list = ListStore(store_);
    for (const ArchiveMember& m : *list)
      members.push_back(fmt::format("{}:{}:{}", m.record->run[0], m.step, ClaimsText(ClaimsOf(*m.record))));
    std::ranges::sort(members);
    return members;
  }
  using Members = std::vector<std::string>;

  TempDir dir_{TempDir::Place::kMemory};
  const Store store_{FileSystem::Posix(), dir_ / "store"};
  Policy policy_;
  std::map<std::string, std::string> why_;
};

TEST_F(PruneTest, DirectoriesOfEqualNamesAreDifferentRuns) {
  Make("e1/gpt", 2, 'a');
  Make("e1/gpt", 4, 'a');
  Make("e2/gpt", 8, 'b');
  Run(policy_);
  PruneBy(policy_);
  EXPECT_EQ(Stored(), (Members{"a:4:weekly", "b:8:weekly"}));
  const Plan plan = MakePlan(fs, policy_, 0, 0).value();
  EXPECT_TRUE(plan.ambiguous);
  EXPECT_EQ(plan.entries.front().title.substr(0, 4), "gpt~") << plan.entries.front().title;
  Make("e1/gpt", 6, 'a');  // the next one is kept as well, in place of the one before
  Run(policy_);
  PruneBy(policy_);
  EXPECT_EQ(Stored(), (Members{"a:6:weekly", "b:8:weekly"}));
}

TEST_F(PruneTest, ARunRestartedUnderItsNameIsAnotherRun) {
  Make("e1/gpt", 8, 'a');
  Run(policy_);
  stdfs::remove_all(dir_ / "e1/gpt");
  Make("e1/gpt", 2, 'b');
  Make("e1/gpt", 4, 'b');
  Run(policy_);
  EXPECT_EQ(Stored(), (Members{"a:8:weekly", "b:4:weekly"}));
  PruneBy(policy_);
  EXPECT_EQ(Stored(), (Members{"a:8:weekly", "b:4:weekly"}));
  EXPECT_EQ(why_["gpt@8"], "of a run that is not on scratch, or not of this policy");
}

TEST_F(PruneTest, ArchivesARolledBackTrainingFromThatStep) {
  Make("e1/gpt", 4, 'a');
  Make("e1/gpt", 8, 'a');
  Run(policy_);
  stdfs::remove_all(dir_ / "e1/gpt/step-00000008");
  Make("e1/gpt", 6, 'a', 99);
  const std::string manifest = dir_ / "e1/gpt/step-00000006/manifest.json";
  stdfs::last_write_time(manifest, stdfs::last_write_time(manifest) + std::chrono::hours(1));
  Run(policy_);
  PruneBy(policy_);
  EXPECT_EQ(Stored(), (Members{"a:6:weekly", "a:8:weekly"}));  // prune removes neither
}

TEST_F(PruneTest, AbandonedStepsCountForNoClass) {
  Make("e1/gpt", 4, 'a');
  Make("e1/gpt", 8, 'a');
  Run(policy_);
  Make("e1/gpt", 6, 'a');
  const Plan plan = MakePlan(fs, policy_, 0, 0).value();
  for (const PlanEntry& entry : plan.entries)
    EXPECT_EQ(entry.why.starts_with("superseded"), entry.step == 8) << entry.why;
  Run(policy_);
  EXPECT_EQ(Stored(), (Members{"a:6:weekly", "a:8:weekly"}));
  const auto newest = FindMember(store_, "gpt");
  ASSERT_TRUE(newest.ok()) << newest.status().message();
  EXPECT_EQ(newest->step, 6);
}

TEST_F(PruneTest, ABranchKeepsItsStepsAndItsAncestorItsOwn) {
  Make("e1/gpt", 4, 'a');
  Make("e1/gpt", 8, 'a');
  Make("e2/gpt", 4, 'a');  // copied before the ancestor's step 8
  Make("e2/gpt", 6, 'b');
  Run(policy_);
  PruneBy(policy_);
  EXPECT_EQ(Stored(), (Members{"a:8:weekly", "b:6:weekly"}));
}

TEST_F(PruneTest, CopiesOfARunAreStoredOnce) {
  Make("e1/gpt", 4, 'a');
  Make("e2/gpt", 4, 'a');
  Run(policy_);
  EXPECT_EQ(Stored(), (Members{"a:4:weekly"}));
  Make("e1/gpt", 6, 'a', 1);
  Make("e2/gpt", 6, 'a', 2);  // both continued, under an older version
  Run(policy_);
  EXPECT_EQ(Stored(), (Members{"a:4:weekly", "a:6:weekly", "a:6:weekly"}));
  PruneBy(policy_);
  EXPECT_EQ(Stored().size(), 3u);
  EXPECT_EQ(why_["gpt@4"], "of a run that several directories are copies of");
}

TEST_F(PruneTest, AStepOfAnotherRunDoesNotReplaceADamagedOne) {
  Make("e1/gpt", 8, 'a');
  Make("e2/gpt", 8, 'b');
  policy_.runs = {dir_ / "e2/gpt"};
  Run(policy_);
  policy_.runs = {dir_ / "e*/gpt"};
  stdfs::remove(dir_ / "e1/gpt/step-00000008/manifest.json");
  const Plan plan = MakePlan(fs, policy_, 0, 0).value();
  ASSERT_EQ(plan.failures.size(), 1u);
  EXPECT_NE(plan.failures[0].find("cannot be read"), std::string::npos) << plan.failures[0];
  stdfs::resize_file(dir_ / "e2/gpt/step-00000008/shard-00000.h5", 10);  // that one is stored, by its content
  EXPECT_EQ(MakePlan(fs, policy_, 0, 0)->failures.size(), 1u);
}

TEST_F(PruneTest, AnEmptiedStepCountsAsStoredIfTheRunMatches) {
  Make("e1/gpt", 8, 'a');
  const DirectoryFacts here = FactsOfDirectory(dir_ / "e1/gpt").value();  // as every training writes it
  ASSERT_TRUE(WriteSmallFile(fs, dir_ / "e1/gpt/.run",
                             fmt::format(R"({{"run": "{}", "directory": "{}", "inode": {}, )"
                                         R"("born_unix_nanoseconds": {}}})",
                                         Id('a'), CanonicalPath(dir_ / "e1/gpt"), here.inode,
                                         here.born_unix_nanoseconds))
                  .ok());
  Run(policy_);
  for (const auto& file : stdfs::directory_iterator(dir_ / "e1/gpt/step-00000008")) stdfs::remove(file);
  EXPECT_EQ(MakePlan(fs, policy_, 0, 0)->failures, std::vector<std::string>());
  stdfs::rename(dir_ / "e1/gpt/step-00000008", dir_ / "e1/gpt/step-00000009");
  EXPECT_EQ(MakePlan(fs, policy_, 0, 0)->failures.size(), 1u);
}

TEST_F(PruneTest, RemovesAMemberWhenItsLastClaimIsDropped) {
  Make("e1/gpt", 2, 'a');
  Policy daily = Of("daily", {dir_ / "e1/gpt"}, {.last = 1});
  Run(policy_);
  Run(daily);
  EXPECT_EQ(Stored(), (Members{"a:2:daily, weekly"}));
  Make("e1/gpt", 4, 'a');
  Run(policy_);
  EXPECT_EQ(Stored(), (Members{"a:2:daily, weekly", "a:4:weekly"}));
  PruneBy(policy_);  // neither asks for 2 any more, but daily has not run since
  EXPECT_EQ(Stored(), (Members{"a:2:daily", "a:4:weekly"}));
  EXPECT_EQ(why_["gpt@2"], "no class asks for it; it stays, claimed by daily, too");
  PruneBy(policy_);
  EXPECT_EQ(why_["gpt@2"], "claimed by daily, not by this policy");
  Run(daily);
  PruneBy(daily);
  EXPECT_EQ(Stored(), (Members{"a:4:daily, weekly"}));
}

TEST_F(PruneTest, ClaimsAreKeptInBundles) {
  for (const int64_t step : {2, 4, 6}) Make("e1/gpt", step, 'a');
  Run(Of("all", {dir_ / "e1/gpt"}, {.every = 2}));
  const uint64_t large = uint64_t{1} << 40;
  ASSERT_TRUE(MakeBundles(store_, {.sizes = {large, large, large}, .all = true}).ok());
  Run(policy_);
  EXPECT_EQ(Stored(), (Members{"a:2:all", "a:4:all", "a:6:all, weekly"}));
  const std::vector<ArchiveMember> members = ListStore(store_).value();
  for (const ArchiveMember& m : members) EXPECT_TRUE(VerifyMember(store_, m).problems.empty()) << m.step;
  const Policy none = Of("all", {dir_ / "e1/gpt"}, {.steps = {2}});
  PruneBy(none);
  EXPECT_EQ(Stored(), (Members{"a:2:all", "a:4:all", "a:6:all, weekly"}));  // a bundle is removed as a whole
}

TEST_F(PruneTest, MembersWithoutAPolicyStayUntilAdopted) {
  for (const int64_t step : {2, 4, 6}) Make("e1/gpt", step, 'a');
  const auto store = [&](int64_t step, std::vector<std::string> claims) {
    const FoundStep source{dir_ / ("e1/gpt/" + StepDirName(step))};
    ASSERT_TRUE(Archive(store_, {source}, {.claims = std::move(claims)}, {}).ok());
  };
  store(2, {});
  store(4, {std::string(kByHand)});
  Run(policy_);
  const Members all{"a:2:unknown", "a:4:hand", "a:6:weekly"};
  PruneBy(policy_);
  EXPECT_EQ(Stored(), all);
  EXPECT_EQ(OrphanedClaims(fs, policy_)->size(), 1u);
  EXPECT_EQ(AdoptClaims(store_, {"unknown", "by hand"}, "weekly").value(), 2u);
  PruneBy(policy_);
  EXPECT_EQ(Stored(), (Members{"a:6:weekly"}));
}

TEST_F(PruneTest, AMovedPolicyPrunesNothingUntilItAdoptsItsOldLabel) {
  Policy moved = policy_;
  moved.tag.clear();
  moved.path = dir_ / "old.toml";
  Make("e1/gpt", 2, 'a');
  Run(moved);
  Make("e1/gpt", 4, 'a');
  moved.path = dir_ / "new.toml";
  Run(moved);
  PruneBy(moved);
  EXPECT_EQ(Stored().size(), 2u);
  ASSERT_EQ(OrphanedClaims(fs, moved)->size(), 1u);
  EXPECT_NE(OrphanedClaims(fs, moved)->front().find("--adopt 'policy:" + dir_ / "old.toml'"),
            std::string::npos);
  PruneBy(moved, {"policy:" + dir_ / "old.toml"});
  EXPECT_EQ(Stored().size(), 1u);
}

TEST_F(PruneTest, MissingRunsFailThePlanByName) {
  Make("e1/gpt", 2, 'a');
  ASSERT_TRUE(MakeDirs(fs, dir_ / "e2/gpt").ok());
  stdfs::create_directory_symlink("e3", dir_ / "e3");  // a cycle
  policy_.runs.push_back(dir_ / "none*");
  const auto failures = MakePlan(fs, policy_, 0, 0)->failures;
  ASSERT_EQ(failures.size(), 3u) << fmt::format("{}", fmt::join(failures, "; "));
  const std::string all = fmt::format("{}", fmt::join(failures, "\n"));
  for (const std::string& part :
       {dir_ / "e2/gpt: it matches `runs`", dir_ / "e3", dir_ / "none*: the policy names it"})
    EXPECT_NE(all.find(part), std::string::npos) << all;
}

TEST_F(PruneTest, AnArchivedAndRemovedRunIsANote) {
  Make("e1/gpt", 2, 'a');
  Run(policy_);
  stdfs::remove_all(dir_ / "e1");
  const Plan plan = MakePlan(fs, policy_, 0, 0).value();
  EXPECT_TRUE(plan.failures.empty());
  ASSERT_EQ(plan.notes.size(), 1u);
  EXPECT_NE(plan.notes[0].find("the store has 1 member from it"), std::string::npos) << plan.notes[0];
}

TEST_F(PruneTest, ClassesThatCanSelectNothingAreAFailure) {
  Make("e1/gpt", 10, 'a');
  policy_.classes = {{.every = 20}};
  EXPECT_TRUE(MakePlan(fs, policy_, 0, 0)->failures.empty());  // not yet
  Make("e1/gpt", 30, 'a');
  EXPECT_EQ(MakePlan(fs, policy_, 0, 0)->failures.size(), 1u);
}

}  // namespace
}  // namespace cairn
