#include "tools/run_listing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"
#include "tools/archive/purge_clock.h"
#include "tools/edit_distance.h"

namespace cairn {
namespace {

TEST(RunListingTest, TellsTheStateOfEveryStep) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir dir;
  StepRecipe recipe = RecipeOf({}, {.tp = 2});
  for (int64_t step : {10, 20, 30}) {
    recipe.step = step;
    ASSERT_TRUE(MakeStep(fs, dir / "gpt", recipe).ok());
  }
  std::filesystem::remove(dir / "gpt/step-00000020/shard-00001.h5");
  std::filesystem::rename(dir / "gpt/step-00000030", dir / "gpt/step-00000030.superseded-ab");
  std::filesystem::create_directory(dir / "gpt/step-00000040.partial-ab");
  const auto runs = ListRuns(fs, dir.path());
  ASSERT_TRUE(runs.ok()) << runs.status().message();
  ASSERT_EQ(runs->size(), 1u);
  const std::vector<StepListing>& steps = runs->front().steps;
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[0].state, "committed");
  EXPECT_EQ(steps[0].role_bytes[0] * 2, steps[0].role_bytes[1]);  // bf16 weights, fp32 masters
  EXPECT_EQ(steps[1].state, "damaged");
  EXPECT_NE(steps[1].trouble.find("shard-00001.h5"), std::string::npos);
  EXPECT_EQ(steps[2].state, "superseded");
  EXPECT_EQ(steps[3].state, "partial");
  EXPECT_EQ(steps[3].step, 40);
  EXPECT_EQ(ListRuns(fs, dir / "gpt/step-00000010")->front().steps.size(), 1u);
  EXPECT_EQ(ListRuns(fs, dir / "gpt/step-00000040.partial-ab").status().kind(), StatusKind::kNotFound);
}

TEST(PurgeClockTest, DaysCountFromTheLastAccess) {
  EXPECT_DOUBLE_EQ(DaysUntilPurge(0, 10 * 86400, 30), 20);
  EXPECT_DOUBLE_EQ(DaysUntilPurge(0, 31 * 86400, 30), -1);
}

TEST(EditDistanceTest, CountsLettersToChange) {
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("inspct", "inspect"), 1u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("ls", "ls"), 0u);
}

// By its own record, or by that of the step that followed it.
TEST(RunListingTest, TellsUnhealthySteps) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir dir;
  StepRecipe recipe = RecipeOf({}, {});
  const nlohmann::json state = recipe.state;
  Health health{.session = "a"};
  const auto make = [&](int64_t step) {
    recipe.step = step;
    recipe.state = state;
    recipe.state["health"] = ToJson(health);
    ASSERT_TRUE(MakeStep(fs, dir / "gpt", recipe).ok());
  };
  make(10);
  make(20);
  health = {
      .loss = std::nan(""), .bad_iterations = 10, .first_bad_iteration = 21, .session = "a", .accused = "a"};
  make(30);
  const auto runs = ListRuns(fs, dir / "gpt");
  ASSERT_TRUE(runs.ok()) << runs.status().message();
  const std::vector<StepListing>& steps = runs->front().steps;
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].unhealthy, "");
  EXPECT_EQ(steps[1].unhealthy, "the iteration after it was bad, as step 30 says");
  EXPECT_EQ(steps[2].unhealthy, "loss nan, 10 bad iterations in a row from iteration 21");
  EXPECT_EQ(ListRuns(fs, dir / "gpt/step-00000030")->front().steps[0].unhealthy, steps[2].unhealthy);
}

}  // namespace
}  // namespace cairn
