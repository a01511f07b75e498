#include "tools/serve/origins.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

using Names = std::vector<std::string>;

class OriginsTest : public testing::Test {
 protected:
  // Reads the first `count` of the step's tensors.
  void Read(const BranchedStep& step, const Names& names, size_t count) {
    Origins::Known known{.commit = step, .names = names, .has = std::vector<bool>(names.size())};
    for (size_t i = 0; i < count; ++i) known.has[i] = true;
    origins_.Read(ParseOrigin(OriginJson(known)).value());
  }
  std::optional<int64_t> Of(int64_t step, const Names& names, const std::string& run = "a") {
    const auto origin = origins_.Of(run, step, names, origins_.Now(), newest_);
    return origin ? std::optional(origin->step) : std::nullopt;
  }

  const Names all_ = {"weight", "moment"};
  std::optional<BranchedStep> newest_ = BranchedStep{40, "a"};
  Origins origins_;
};

TEST_F(OriginsTest, IsTheLastStepReadWithTheSameTensors) {
  EXPECT_EQ(Of(50, all_), std::nullopt);
  Read({30, "a"}, all_, 2);
  EXPECT_EQ(Of(50, all_), 30);
  Read({20, "a"}, all_, 2);
  EXPECT_EQ(Of(50, all_), 20);
  EXPECT_EQ(Of(50, {"weight"}), 20);  // the last save often leaves the optimizer out
  EXPECT_EQ(Of(50, {"another"}), std::nullopt);
}

TEST_F(OriginsTest, PartialOrLaterReadsDoNotCount) {
  Read({30, "a"}, all_, 2);
  Read({20, "a"}, all_, 1);  // only weights, to evaluate them
  EXPECT_EQ(Of(31, all_), 30);
  Read({40, "a"}, all_, 2);  // a later step than the one that is saved
  EXPECT_EQ(Of(31, all_), 30);
  Read({35, "teacher"}, all_, 2);
  EXPECT_EQ(Of(50, all_), 40);
}

TEST_F(OriginsTest, ATrainingThatReadsOnlyWeightsDescendsFromThem) {
  Read({20, "a"}, all_, 1);
  EXPECT_EQ(Of(31, all_), 20);
}

TEST_F(OriginsTest, AfterASaveItIsTheSavedStep) {
  Read({30, "a"}, all_, 2);
  const uint64_t handed_over = origins_.Now();
  origins_.Saved({50, "a"}, all_, handed_over);
  EXPECT_EQ(Of(60, all_), 50);
  EXPECT_EQ(Of(60, {"renamed"}), 50);
  Read({30, "a"}, all_, 2);
  EXPECT_EQ(Of(60, all_), 30);
  // What was read after a save was handed over is not its origin.
  EXPECT_EQ(origins_.Of("a", 60, all_, handed_over, newest_)->step, 50);
}

TEST_F(OriginsTest, ASaveStartedBeforeALoadDoesNotReplaceIt) {
  const uint64_t handed_over = origins_.Now();
  Read({30, "a"}, all_, 2);
  origins_.Saved({50, "a"}, all_, handed_over);  // committed only now
  EXPECT_EQ(Of(60, all_), 30);
}

TEST_F(OriginsTest, TwoRunsOfOneTrainingDoNotDescendFromEachOther) {
  newest_ = std::nullopt;
  origins_.Saved({1, "a"}, all_, origins_.Now());
  EXPECT_EQ(Of(1, all_, "average"), std::nullopt);
  origins_.Saved({1, "average"}, all_, origins_.Now());
  newest_ = BranchedStep{1, "a"};
  EXPECT_EQ(Of(2, all_, "a"), 1);
  EXPECT_EQ(origins_.Of("a", 2, all_, origins_.Now(), newest_)->run, "a");
}

TEST_F(OriginsTest, ANewRunCanDescendFromAnother) {
  newest_ = std::nullopt;
  Read({5000, "base"}, all_, 2);
  EXPECT_EQ(Of(1, all_), 5000);
}

}  // namespace
}  // namespace cairn
