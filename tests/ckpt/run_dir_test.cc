#include "ckpt/run_dir.h"

#include <gtest/gtest.h>

#include "ckpt/layout.h"

namespace cairn {
namespace {

TEST(RetentionTest, RulesAddUpAndTheNewestStays) {
  std::vector<StepFacts> steps;
  for (int64_t step = 10; step <= 100; step += 10) steps.push_back({step, step * 100});
  EXPECT_EQ(StepsToRetire(steps, {}), std::vector<int64_t>{});
  EXPECT_EQ(StepsToRetire(steps, {.keep_last = 8}), (std::vector<int64_t>{10, 20}));
  EXPECT_EQ(StepsToRetire(steps, {.keep_last = 1, .keep_every = 30}),
            (std::vector<int64_t>{10, 20, 40, 50, 70, 80}));
  EXPECT_EQ(StepsToRetire(steps, {.keep_every = 1000}),
            (std::vector<int64_t>{10, 20, 30, 40, 50, 60, 70, 80, 90}));
  // Token milestones at 2500, 5000, 7500, 10000: the first steps at or after them are 30, 50, 80, 100.
  EXPECT_EQ(StepsToRetire(steps, {.keep_tokens = 2500}), (std::vector<int64_t>{10, 20, 40, 60, 70, 90}));
}

TEST(LayoutTest, StepNamesRoundTripAndMarkedOnesAreNoSteps) {
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

TEST(LayoutTest, PieceNamesTellBoxAndRange) {
  TensorEntry tensor;
  tensor.spec.name = "w";
  EXPECT_EQ(PiecePath(tensor, {{4, 0}, {2, 3}}, {0, 6}), "/weight/w@4,0");
  EXPECT_EQ(PiecePath(tensor, {{4, 0}, {2, 3}}, {2, 6}), "/weight/w@4,0+2");
}

}  // namespace
}  // namespace cairn
