#include "tools/check/run_listing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "ckpt/run/run_health.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"
#include "tools/archive/policy/purge_clock.h"
#include "tools/check/step_check.h"

namespace cairn {
namespace {

TEST(RunListingTest, ShowsTheStateOfEveryStep) {
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
  EXPECT_EQ(steps[0].role_bytes.at(Role::kWeight) * 2,
            steps[0].role_bytes.at(Role::kMaster));  // bf16 weights, fp32 masters
  EXPECT_EQ(steps[1].state, "damaged");
  EXPECT_NE(steps[1].trouble.find("shard-00001.h5"), std::string::npos);
  EXPECT_EQ(steps[2].state, "superseded");
  EXPECT_EQ(steps[3].state, "partial");
  EXPECT_EQ(steps[3].step, 40);
  EXPECT_EQ(ListRuns(fs, dir / "gpt/step-00000010")->front().steps.size(), 1u);
  EXPECT_EQ(ListRuns(fs, dir / "gpt/step-00000030.superseded-ab/")->front().steps[0].state, "superseded");
  EXPECT_EQ(ListRuns(fs, dir / "gpt/step-00000040.partial-ab").status().kind(), StatusKind::kNotFound);
}

TEST(RunListingTest, ASingleStepHasTheStateItHasInItsRun) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir dir;
  const StepRecipe recipe = RecipeOf({}, {});
  ASSERT_TRUE(MakeStep(fs, dir / "gpt", recipe).ok());
  const std::string path = dir / ("gpt/" + StepDirName(recipe.step));
  EXPECT_EQ(ListRuns(fs, path)->front().steps[0].unhealthy, "");
  ASSERT_TRUE(WriteCondemnation(fs, dir / "gpt",
                                {.run = recipe.run, .step = recipe.step, .session = "", .bad_iterations = 3})
                  .ok());
  const std::string in_run = ListRuns(fs, dir / "gpt")->front().steps[0].unhealthy;
  EXPECT_NE(in_run, "");
  EXPECT_EQ(ListRuns(fs, path)->front().steps[0].unhealthy, in_run);
  EXPECT_EQ(ListRuns(fs, path + "/")->front().steps[0].unhealthy, in_run);
}

class VerifiedStepTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeStep(fs_, dir_ / "gpt", RecipeOf({}, {.tp = 2})).ok());
    manifest_ = (*StepReader::Open(fs_, step_))->manifest();
  }

  // As cairn verify does.
  void Look(const CheckOptions& options) {
    std::vector<Check> checks = CheckStep(fs_, step_, options).checks;
    for (Check& check : checks) {
      check.of_bytes = manifest_.bytes();
      check.files = StatFiles(fs_, step_, manifest_);
    }
    ASSERT_TRUE(AddToVerifyRecord(fs_, step_, manifest_, checks).ok());
  }

  StepListing Listed() { return ListRuns(fs_, step_)->front().steps.front(); }

  // One byte at the shard's end, in its own structure, or in the middle, in a tensor.
  void Flip(uint64_t offset) {
    std::fstream file(step_ + "/shard-00001.h5", std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(offset);
    file.put(byte);
  }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir dir_;
  const std::string step_ = dir_ / "gpt/step-00000100";
  Manifest manifest_;
};

TEST_F(VerifiedStepTest, AWeakerCheckHidesNoFailureAndAddsNothing) {
  EXPECT_EQ(Listed().state, "committed");
  Look({.structure = true, .hash = false});
  EXPECT_EQ(Listed().state, "committed");
  Look({.sample = SampleSize{.max_bytes = 1}});
  EXPECT_EQ(Listed().state, "partly verified");
  Look({});
  EXPECT_EQ(Listed().state, "verified");
  const uint64_t middle = std::filesystem::file_size(step_ + "/shard-00001.h5") / 2;
  Flip(middle);
  EXPECT_EQ(Listed().state, "changed since verified");
  EXPECT_NE(Listed().trouble.find("shard-00001.h5"), std::string::npos);
  Look({.structure = true, .hash = false});
  EXPECT_EQ(Listed().state, "changed since verified");
  Look({});
  EXPECT_EQ(Listed().state, "damaged");
  EXPECT_NE(Listed().trouble.find("shard-00001.h5"), std::string::npos) << Listed().trouble;
  Look({.structure = true, .hash = false});
  Flip(middle);  // repaired, but not checked
  Look({.sample = SampleSize{.max_bytes = 1}});
  EXPECT_EQ(Listed().state, "damaged");
  Look({});
  EXPECT_EQ(Listed().state, "verified");
}

TEST_F(VerifiedStepTest, AReplacedFileIsAChangeEvenIfEqual) {
  Look({});
  const std::string shard = step_ + "/shard-00000.h5";
  const auto time = std::filesystem::last_write_time(shard);
  std::filesystem::copy_file(shard, step_ + "/copy");
  std::filesystem::rename(step_ + "/copy", shard);
  std::filesystem::last_write_time(shard, time);
  EXPECT_EQ(Listed().state, "changed since verified");
}

TEST_F(VerifiedStepTest, RecordsRoundTrip) {
  Look({.values = true});  // MakeStep draws weights and masters independently: these fail
  Look({.structure = false, .sample = SampleSize{.fraction = 0.3}});
  const std::vector<Check> checks = ReadVerifyRecord(fs_, step_, manifest_);
  ASSERT_EQ(checks.size(), 4u);
  EXPECT_EQ(checks[2].kind, CheckKind::kValues);
  EXPECT_GT(checks[2].problems, 0u);
  EXPECT_FALSE(checks[2].first_problems.empty());
  EXPECT_EQ(checks[3].kind, CheckKind::kSample);
  EXPECT_FALSE(checks[3].ranges.empty());
  EXPECT_EQ(checks[3].files, StatFiles(fs_, step_, manifest_));
  EXPECT_EQ(*AddToVerifyRecord(fs_, step_, manifest_, {}), checks);
  Manifest other = manifest_;
  other.step = 101;
  EXPECT_TRUE(ReadVerifyRecord(fs_, step_, other).empty());
}

TEST_F(VerifiedStepTest, ReadsRecordsOfEarlierVersions) {
  std::filesystem::create_directory(dir_ / "gpt/verified");
  const auto write = [&](const std::string& fields) {
    std::ofstream(dir_ / "gpt/verified/step-00000100.json")
        << fmt::format(R"({{"manifest": "{}", "unix_seconds": 9999999999, "bytes": 5, {}}})",
                       ToHex(DigestOf(EncodeManifest(manifest_))), fields);
  };
  write(R"("checked": "structure, every byte", "problems": 0)");
  EXPECT_EQ(Listed().state, "verified");
  write(R"("checked": "structure", "problems": 0)");
  EXPECT_EQ(Listed().state, "committed");
  write(R"("checked": "structure, every byte", "problems": 3)");
  EXPECT_EQ(Listed().state, "damaged");
  Look({});
  EXPECT_EQ(Listed().state, "verified");
}

TEST_F(VerifiedStepTest, KeepsRecordsOfLaterVersions) {
  const std::string path = dir_ / "gpt/verified/step-00000100.json",
                    later = R"({"version": 99, "checks": [7]})";
  std::filesystem::create_directory(dir_ / "gpt/verified");
  std::ofstream(path) << later;
  EXPECT_EQ(Listed().state, "committed");
  EXPECT_EQ(AddToVerifyRecord(fs_, step_, manifest_, {}).status().kind(), StatusKind::kNotSupported);
  EXPECT_EQ(*ReadSmallFile(fs_, path, 1000), later);
}

TEST(PurgeClockTest, DaysCountFromTheLastAccess) {
  EXPECT_DOUBLE_EQ(DaysUntilPurge(0, 10 * 86400, 30), 20);
  EXPECT_DOUBLE_EQ(DaysUntilPurge(0, 31 * 86400, 30), -1);
  EXPECT_EQ(DaysText(DaysUntilPurge(FileTimes().first_accessed, 31 * 86400, 30)), "-") << "no file";
}

// By its own record, or by that of the step that followed it.
TEST(RunListingTest, ShowsUnhealthySteps) {
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
  EXPECT_EQ(steps[1].unhealthy, "step 30 records that the iteration after it was bad");
  EXPECT_EQ(steps[2].unhealthy, "loss nan, 10 bad iterations in a row from iteration 21");
  EXPECT_EQ(ListRuns(fs, dir / "gpt/step-00000030")->front().steps[0].unhealthy, steps[2].unhealthy);
}

}  // namespace
}  // namespace cairn
