#include "tools/check/checkpoint_check.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/file_bytes.h"
#include "tests/support/make_step.h"
#include "tests/support/open_step.h"
#include "tests/support/temp_dir.h"
#include "tests/support/transfers.h"
#include "tools/archive/store/archiver.h"
#include "tools/seal/sealer.h"

namespace cairn {
namespace {

class CheckpointCheckTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const int64_t step : {10, 20}) {
      StepRecipe recipe = RecipeOf({.layers = 1}, {});
      recipe.packed = recipe.split_master = true;  // weights are their masters rounded
      recipe.step = step;
      recipe.state["iteration"] = step;
      ASSERT_TRUE(MakeStep(Fs(), run_, recipe).ok());
    }
  }

  // The step at 20 as Megatron-DeepSpeed's.
  std::string Foreign() {
    const auto made = Export(Fs(), *Open(run_), *FindSystem("megatron-deepspeed"), dir_ / "foreign",
                             {.target = {.topology = {.zero = 1}, .dtype = {}}, .writer = {}});
    EXPECT_TRUE(made.ok()) << made.status().message();
    return dir_ / "foreign/global_step20";
  }
  // The largest file below `directory`.
  static std::string Largest(const std::string& directory) {
    std::filesystem::directory_entry largest;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
      if (entry.is_regular_file() && (!largest.exists() || entry.file_size() > largest.file_size()))
        largest = entry;
    return largest.path();
  }

  std::vector<CheckpointReport> Check(const std::string& argument, const CheckpointChecks& checks = {}) {
    std::vector<CheckpointReport> reports;
    status_ = CheckCheckpoints(Fs(), argument, checks,
                               [&](const CheckpointReport& report) { reports.push_back(report); });
    return reports;
  }
  // The argument means one checkpoint.
  CheckpointReport CheckOne(const std::string& argument, const CheckpointChecks& checks = {}) {
    const std::vector<CheckpointReport> reports = Check(argument, checks);
    EXPECT_TRUE(status_.ok()) << status_.message();
    EXPECT_EQ(reports.size(), 1u);
    return reports.empty() ? CheckpointReport{} : reports[0];
  }

  TempDir dir_;
  const std::string run_ = dir_ / "gpt";
  Status status_;
};

TEST_F(CheckpointCheckTest, ChecksTheNewestStepOrAll) {
  const CheckpointReport newest = CheckOne(run_);
  EXPECT_TRUE(newest.passed());
  EXPECT_TRUE(newest.checkpoint.ends_with("step-00000020"));
  EXPECT_EQ(newest.what, "structure, every byte");
  FlipByte(run_ + "/step-00000010/shard-00000.h5", 5000);
  const auto all = Check(run_, {.open = {}, .all = true});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_FALSE(all[0].passed());
  EXPECT_TRUE(all[1].passed());
  EXPECT_EQ(CheckOne(run_ + "@10", {.open = {}, .structure = true}).what, "structure");
  EXPECT_TRUE(std::filesystem::exists(run_ + "/verified/step-00000010.json"));
  Check(dir_ / "none");
  EXPECT_EQ(status_.kind(), StatusKind::kNotFound);
}

TEST_F(CheckpointCheckTest, NotesFilesThatTheManifestDoesNotList) {
  std::ofstream(run_ + "/step-00000020/extra.txt") << "x";
  const CheckpointReport report = CheckOne(run_, {.open = {}, .record = false});
  EXPECT_TRUE(report.passed());
  EXPECT_EQ(report.unlisted, std::vector<std::string>{"extra.txt"});
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("does not list: extra.txt"), std::string::npos);
}

TEST_F(CheckpointCheckTest, NotesAnEarlierFailureThatAWeakerCheckDoesNotSettle) {
  const std::string shard = run_ + "/step-00000020/shard-00000.h5";
  FlipByte(shard, 5000);
  EXPECT_FALSE(CheckOne(run_).passed());
  const CheckpointReport weaker = CheckOne(run_, {.open = {}, .structure = true});
  EXPECT_TRUE(weaker.passed());
  ASSERT_EQ(weaker.notes.size(), 1u);
  EXPECT_NE(weaker.notes[0].find("still counts as damaged"), std::string::npos);
}

TEST_F(CheckpointCheckTest, ChecksAnotherSystemsFilesByTheirChecksumsOrTheirSeal) {
  const std::string step = Foreign();
  const CheckpointReport good = CheckOne(step);
  EXPECT_TRUE(good.passed()) << good.status().message();
  EXPECT_EQ(good.what, "structure, every byte by its checksum, values; other files by their checksums");
  EXPECT_EQ(CheckOne(dir_ / "foreign", {.open = {}, .all = true}).notes,
            std::vector<std::string>{step + " has no seal"});
  Check(step, {.open = {}, .sample = SampleSize{}});
  EXPECT_EQ(status_.kind(), StatusKind::kNotSupported);
  ASSERT_TRUE(SealForeignStep(FileSystem::Posix(), {step, 20}, {.open = {}, .quiet_seconds = 0}).ok());
  EXPECT_EQ(CheckOne(step).what, "every byte against the seal; --values reads the values, too");
  const std::string file = Largest(step);
  FlipByte(file, std::filesystem::file_size(file) / 2);
  const CheckpointReport damaged = CheckOne(step);
  ASSERT_EQ(damaged.problems.size(), 1u);
  EXPECT_EQ(damaged.problems[0].file, file);
  std::filesystem::remove(step + "/.cairn-seal.json");
  EXPECT_FALSE(CheckOne(step).passed());
}

TEST_F(CheckpointCheckTest, ChecksTheMemberOfAStore) {
  const Store store(Fs(), dir_ / "store");
  ASSERT_TRUE(MakeDirs(Fs(), store.directory()).ok());
  ASSERT_TRUE(Archive(store, {{.path = run_ + "/step-00000020"}}, {}, {}).ok());
  const CheckpointReport report = CheckOne(store.directory() + ":gpt@20", {.open = {}, .values = true});
  EXPECT_TRUE(report.passed()) << report.status().message();
  EXPECT_EQ(report.what, "values");
  EXPECT_GT(report.bytes_checked, 0u);
}

}  // namespace
}  // namespace cairn
