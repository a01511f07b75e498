// Runs of transformers: the steps are checkpoint-N, and trainer_state.json is written last.

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "tests/support/temp_dir.h"
#include "tools/seal/sealer.h"

namespace cairn {
namespace {

class SealedRunTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& file) {
    std::filesystem::create_directories(dir_ / name);
    std::ofstream(dir_ / (name + "/" + file)) << "{}";
    return dir_ / name;
  }
  std::string WriteStep(int64_t number) {
    const std::string name = "checkpoint-" + std::to_string(number);
    Write(name, "rng_state_0.pth");
    return Write(name, "trainer_state.json");
  }
  void Seal(const std::string& path) {
    const auto sealed = SealForeignStep(fs_, {path, std::nullopt}, {.open = {}, .quiet_seconds = 0});
    ASSERT_TRUE(sealed.ok()) << sealed.status().message();
    EXPECT_TRUE(ReadSeal(fs_, path).ok());
  }
  std::optional<FoundStep> Newest(SealDepth depth = SealDepth::kTouched) {
    lines_.clear();
    const auto found = NewestWholeStep(fs_, dir_.path(), depth, 1,
                                       [this](const std::string& line) { lines_.push_back(line); });
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? *found : std::nullopt;
  }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir dir_;
  std::vector<std::string> lines_;
};

TEST_F(SealedRunTest, WatchesNewestFirstAndTriesAgainWhenFilesChange) {
  WriteStep(20);
  WriteStep(40);
  Write("checkpoint-60", "model.safetensors");  // its writer is not done
  std::atomic<bool> stop = false;
  std::vector<int64_t> tried;
  WatchRun(fs_, dir_.path(), {.open = {}, .quiet_seconds = 0, .stop = &stop}, 0, [&](const FoundStep& step) {
    tried.push_back(*step.step);
    if (tried.size() == 2) Seal(step.path);  // 40 stays without a seal
    if (tried.size() == 2) WriteStep(80);
    if (tried.size() == 3) Write("checkpoint-40", "more.txt");
    stop = tried.size() == 4;
  });
  EXPECT_EQ(tried, (std::vector<int64_t>{40, 20, 80, 40}));
}

TEST_F(SealedRunTest, PassesOverStepsThatAreNotWhole) {
  EXPECT_FALSE(Newest());
  for (const int64_t number : {20, 40, 60}) Seal(WriteStep(number));
  WriteStep(80);
  Write("checkpoint-40", "added.txt");
  std::filesystem::resize_file(dir_ / "checkpoint-60/rng_state_0.pth", 1);
  const auto newest = Newest();
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, 40);
  EXPECT_EQ(lines_,
            (std::vector<std::string>{
                "passed over: " + (dir_ / "checkpoint-80: it has no seal"),
                "passed over: " + (dir_ / "checkpoint-60/rng_state_0.pth: has 1 bytes; 2 were sealed"),
                "note: " + (dir_ / "checkpoint-40/added.txt: was added after the seal"),
                "note: not checked when it was sealed: no format recognises the files, so their completeness "
                "could not be checked"}));
}

TEST_F(SealedRunTest, WaitsForNoFileOnceStopped) {
  const std::string step = WriteStep(20);
  std::atomic<bool> stop = true;
  WaitUntilQuiet(fs_, {step, 20}, {.open = {}, .quiet_seconds = 3600, .stop = &stop},
                 [](const std::string& line) { ADD_FAILURE() << line; });
  stop = false;
  WaitUntilQuiet(fs_, {step, 20}, {.open = {}, .quiet_seconds = 0, .stop = &stop},
                 [](const std::string& line) { ADD_FAILURE() << line; });
}

}  // namespace
}  // namespace cairn
