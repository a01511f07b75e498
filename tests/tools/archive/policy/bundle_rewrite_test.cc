#include "tools/archive/policy/bundle_rewrite.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ckpt/model/layout.h"
#include "tests/support/make_step.h"
#include "tests/support/stopping_file_system.h"
#include "tests/support/temp_dir.h"
#include "tools/archive/bundle/bundle_settle.h"
#include "tools/archive/bundle/bundler.h"
#include "tools/archive/store/archiver.h"
#include "tools/archive/store/removal.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

// Steps 10, 20, 30 and 40 in one bundle; 20 and 40 are asked for.
class BundleRewriteTest : public testing::Test {
 protected:
  BundleRewriteTest() {
    EXPECT_TRUE(MakeDirs(FileSystem::Posix(), store_.directory()).ok());
    for (const int64_t number : {10, 20, 30, 40}) {
      StepRecipe recipe = RecipeOf({.layers = 1}, {});
      recipe.step = number;
      recipe.seed = static_cast<uint64_t>(number);
      EXPECT_TRUE(MakeStep(FileSystem::Posix(), dir_ / "gpt", recipe).ok());
      const auto step = StepReader::Open(FileSystem::Posix(), dir_ / ("gpt/" + StepDirName(number)));
      EXPECT_TRUE(StoreStep(store_, **step, {}, {.claims = {"weekly"}}).ok());
    }
    const uint64_t large = uint64_t{1} << 40;
    EXPECT_TRUE(MakeBundles(store_, {.sizes = {large, large, large}, .all = true}).ok());
    policy_.tag = "weekly";
    policy_.store = store_.directory();
    policy_.runs = {dir_ / "gpt"};
    policy_.classes = {{.keep = Form::kFull, .every = 20, .steps = {}}};
    policy_.rewrite = 0.4;
  }

  Result<std::vector<std::string>> Prune(FileSystem& fs) {
    CAIRN_RETURN_IF_ERROR(CleanStore({fs, store_.directory()}));
    CAIRN_RETURN_IF_ERROR(SettleBundles({fs, store_.directory()}).status());
    CAIRN_ASSIGN_OR_RETURN(entries_, PlanPrune(fs, policy_));
    CAIRN_RETURN_IF_ERROR(RemovePruned(fs, policy_, entries_));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members, ListStore({fs, store_.directory()}));
    std::vector<BundleDraft> drafts;
    for (const BundleRewrite& rewrite : PlanRewrites(members, entries_)) drafts.push_back(rewrite.draft);
    return RewriteBundles({fs, store_.directory()}, drafts, {.parity = parity_});
  }

  // The steps that are verified, and are what they say.
  std::vector<int64_t> Proven() {
    std::vector<int64_t> steps;
    const std::vector<ArchiveMember> members = ListStore(store_).value();
    for (const ArchiveMember& m : members)
      if (m.state == MemberState::kVerified && VerifyMember(store_, m).problems.empty())
        steps.push_back(m.step);
    return steps;
  }
  std::vector<std::string> Bundles() { return ListBundles(store_).value(); }

  TempDir dir_{TempDir::Place::kMemory};
  const Store store_{FileSystem::Posix(), dir_ / "store"};
  Policy policy_;
  double parity_ = 0.05;
  std::vector<PruneEntry> entries_;
};

TEST_F(BundleRewriteTest, KeepsWhatIsAskedForInANewBundle) {
  const std::string before = Bundles()[0];
  const auto problems = Prune(FileSystem::Posix());
  ASSERT_TRUE(problems.ok()) << problems.status().message();
  EXPECT_TRUE(problems->empty());
  ASSERT_EQ(Bundles().size(), 1u);
  const std::string after = Bundles()[0];
  EXPECT_NE(after, before);
  EXPECT_EQ(*store_.List(), (std::vector{after, after + ".json", after + ".parity"}));
  EXPECT_EQ(Proven(), (std::vector<int64_t>{20, 40}));
  for (const PruneEntry& e : entries_) EXPECT_EQ(e.remove && e.rewrite, e.step % 20 != 0) << e.step;
  EXPECT_NE(entries_[0].why.find("no class asks for it; its bundle"), std::string::npos) << entries_[0].why;
  ASSERT_TRUE(Prune(FileSystem::Posix()).ok());  // nothing is left to do
  EXPECT_EQ(Bundles(), std::vector{after});
}

TEST_F(BundleRewriteTest, OnlyWhereItFreesEnoughAndIsAskedFor) {
  const std::vector<std::string> before = *store_.List();
  for (const double share : {0.0, 0.6}) {
    policy_.rewrite = share;
    ASSERT_TRUE(Prune(FileSystem::Posix()).ok());
    EXPECT_EQ(*store_.List(), before);
    for (const PruneEntry& e : entries_) EXPECT_FALSE(e.remove);
  }
}

TEST_F(BundleRewriteTest, TheLastThatStaysGetsABundleOfItsOwn) {
  policy_.classes = {{.keep = Form::kFull, .every = 40, .steps = {}}};
  ASSERT_TRUE(Prune(FileSystem::Posix()).ok());
  EXPECT_EQ(Proven(), std::vector<int64_t>{40});
  EXPECT_EQ(ReadBundle(store_, Bundles()[0])->members.size(), 1u);
}

TEST_F(BundleRewriteTest, DamageInWhatStaysLeavesTheBundleAsItIs) {
  const std::vector<std::string> before = *store_.List();
  const auto member = *FindMember(store_, "gpt@20");
  std::fstream file(store_.Path(Bundles()[0]), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(member.record->files.back().offset + 7)).put('!');
  file.close();
  const auto problems = Prune(FileSystem::Posix());
  ASSERT_TRUE(problems.ok()) << problems.status().message();
  ASSERT_EQ(problems->size(), 1u);
  EXPECT_NE(problems->front().find("gpt/step-00000020"), std::string::npos) << problems->front();
  EXPECT_EQ(*store_.List(), before);
  EXPECT_EQ(Proven(), (std::vector<int64_t>{10, 30, 40}));
}

TEST_F(BundleRewriteTest, AMemberWithATarOfItsOwnKeepsTheBundle) {
  const auto step = StepReader::Open(FileSystem::Posix(), dir_ / "gpt/step-00000040");
  ASSERT_TRUE(StoreStep(store_, **step, {}).ok());  // as a repair leaves it
  const auto entries = PlanPrune(FileSystem::Posix(), policy_).value();
  for (const PruneEntry& e : entries) EXPECT_FALSE(e.remove) << e.step;
  ASSERT_TRUE(Prune(FileSystem::Posix()).ok());  // settles first
  EXPECT_EQ(Proven(), (std::vector<int64_t>{20, 40}));
}

// Stops after every change in turn: what is asked for is proven somewhere, and the next run ends the work.
TEST_F(BundleRewriteTest, NothingIsLostWhereverItStops) {
  parity_ = 0;  // it takes most of the time, and faults has it
  stdfs::copy(store_.directory(), dir_ / "template");
  bool done = false;
  int changes = 0;
  for (; !done; ++changes) {
    StoppingFileSystem stopping(changes);
    done = Prune(stopping).ok();
    const std::vector<int64_t> proven = Proven();
    for (const int64_t step : {20, 40})
      ASSERT_TRUE(std::ranges::find(proven, step) != proven.end()) << step << " after change " << changes;
    const auto problems = Prune(FileSystem::Posix());
    ASSERT_TRUE(problems.ok() && problems->empty()) << "after change " << changes;
    EXPECT_EQ(Proven(), (std::vector<int64_t>{20, 40})) << "after change " << changes;
    ASSERT_EQ(Bundles().size(), 1u) << "after change " << changes;
    EXPECT_EQ(store_.List()->size(), 2u) << "after change " << changes;
    stdfs::remove_all(store_.directory());
    stdfs::copy(dir_ / "template", store_.directory());
  }
  EXPECT_GT(changes, 8);
}

}  // namespace
}  // namespace cairn
