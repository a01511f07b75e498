#include "tools/archive/bundle/bundle_plan.h"

#include <gtest/gtest.h>

#include "tools/archive/store/bundle.h"

namespace cairn {
namespace {

constexpr BundleSizes kSizes{.least = 50, .target = 100, .most = 200};

ArchiveMember Member(int64_t step, uint64_t bytes, const std::string& bundle = "") {
  ArchiveRecord record{.name = "gpt",
                       .run = std::string(32, '1'),
                       .step = step,
                       .directory = fmt::format("gpt/step-{:08}", step),
                       .manifest_digest = std::string(32, 'a'),
                       .bundle = bundle};
  return {.run = "gpt",
          .step = step,
          .tar = TarName(record),
          .bytes = bytes,
          .state = MemberState::kVerified,
          .record = record};
}

std::vector<std::vector<int64_t>> StepsOf(const BundlePlan& plan) {
  std::vector<std::vector<int64_t>> bundles;
  for (const BundleDraft& draft : plan.bundles) {
    bundles.emplace_back();
    for (const ArchiveRecord& member : draft.members) bundles.back().push_back(member.step);
  }
  return bundles;
}

BundlePlan PlanFor(const std::vector<ArchiveMember>& members, bool all, const std::string& passed_over = "") {
  return PlanBundles(members, kSizes, all, [&](const std::string& file) { return file == passed_over; });
}

using Steps = std::vector<std::vector<int64_t>>;

TEST(BundlePlanTest, MakesABundleWhenEnoughBytesWait) {
  const auto few = PlanFor({Member(1, 40), Member(2, 40)}, false);
  EXPECT_TRUE(few.bundles.empty());
  EXPECT_EQ(few.waiting_members, 2u);
  EXPECT_EQ(few.waiting_bytes, 80u);
  const auto enough = PlanFor({Member(1, 40), Member(2, 40), Member(3, 40), Member(4, 40)}, false);
  EXPECT_EQ(StepsOf(enough), (Steps{{1, 2, 3}}));
  EXPECT_EQ(enough.bundles[0].bytes, 120u);
  EXPECT_EQ(enough.waiting_members, 1u);
  EXPECT_EQ(enough.bundles[0].why, "they reach the size of a bundle");
}

TEST(BundlePlanTest, LeavesOutLargeUnprovenAndExcludedMembers) {
  auto unproven = Member(3, 90);
  unproven.state = MemberState::kDamaged;
  const auto passed = Member(4, 90);
  const auto plan =
      PlanFor({Member(1, 100), Member(2, 90), unproven, passed, Member(5, 90)}, true, passed.tar);
  EXPECT_EQ(StepsOf(plan), (Steps{{2, 5}}));
}

TEST(BundlePlanTest, OnDemandBundlesTheRestAndFillsExistingPlans) {
  EXPECT_EQ(StepsOf(PlanFor({Member(1, 10), Member(2, 10)}, true)), (Steps{{1, 2}}));
  EXPECT_EQ(PlanFor({Member(1, 10), Member(2, 10)}, true).bundles[0].why, "nothing is left to add");
  EXPECT_EQ(StepsOf(PlanFor({Member(1, 60), Member(2, 60), Member(3, 10), Member(4, 10)}, true)),
            (Steps{{1, 2, 3, 4}}));
  EXPECT_EQ(StepsOf(PlanFor({Member(1, 60), Member(2, 60), Member(3, 30), Member(4, 30)}, true)),
            (Steps{{1, 2}, {3, 4}}));
  EXPECT_TRUE(PlanFor({Member(1, 10)}, true).bundles.empty());  // one file for one gains nothing
}

TEST(BundlePlanTest, ExistingBundlesAreKept) {
  const std::string small = "gpt-bundle-00000001-00000002.aaaaaaaa.tar";
  const auto plan =
      PlanFor({Member(1, 20, small), Member(2, 20, small), Member(3, 40), Member(4, 70)}, false);
  EXPECT_EQ(StepsOf(plan), (Steps{{3, 4}}));
  EXPECT_EQ(plan.bundles[0].files, (std::vector<std::string>{Member(3, 40).tar, Member(4, 70).tar}));
  EXPECT_EQ(PlanFor({Member(1, 20, small), Member(2, 20, small)}, true).waiting_members, 0u);
}

TEST(BundlePlanTest, NoTwoMembersOfABundleShareADirectory) {
  auto weights = Member(1, 60);
  weights.record->form = Form::kWeights;
  weights.tar = TarName(*weights.record);
  EXPECT_TRUE(PlanFor({Member(1, 10), weights}, true).bundles.empty());
  const auto plan = PlanFor({Member(1, 10), weights, Member(2, 10)}, true);
  EXPECT_EQ(StepsOf(plan), (Steps{{1, 2}}));
  EXPECT_EQ(plan.waiting_members, 1u);
}

TEST(BundlePlanTest, FormsAreBundledSeparatelyUnlessTooSmall) {
  std::vector<ArchiveMember> members = {Member(1, 30), Member(2, 30), Member(3, 30), Member(4, 30)};
  for (const size_t i : {1, 2}) {
    members[i].record->form = Form::kWeights;
    members[i].tar = TarName(*members[i].record);
  }
  EXPECT_EQ(StepsOf(PlanFor(members, true)), (Steps{{1, 4}, {2, 3}}));
  for (ArchiveMember& member : members) member.bytes = 20;
  EXPECT_EQ(StepsOf(PlanFor(members, true)), (Steps{{1, 4, 2, 3}}));
}

TEST(BundlePlanTest, NoBundleExceedsTheMaximum) {
  const BundleSizes tight{.least = 50, .target = 100, .most = 100};
  const auto plan = PlanBundles({Member(1, 70), Member(2, 70), Member(3, 30)}, tight, false,
                                [](const std::string&) { return false; });
  EXPECT_EQ(StepsOf(plan), (Steps{{1, 3}}));
  EXPECT_TRUE(
      PlanBundles({Member(1, 70)}, {}, true, [](const std::string&) { return false; }).bundles.empty());
}

}  // namespace
}  // namespace cairn
