#include "ckpt/job/local_steps.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "ckpt/model/layout.h"
#include "tests/support/file_bytes.h"
#include "tests/support/make_step.h"
#include "tests/support/peer_world.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

constexpr int64_t kStep = 7;

// Two ranks, each with its shard of a step in its directory, and no parity.
class LocalStepsTest : public testing::Test {
 protected:
  void SetUp() override {
    StepRecipe recipe = RecipeOf({}, {.tp = 2});
    recipe.step = kStep;
    const std::string whole = dir_ / "run";
    ASSERT_TRUE(MakeStep(FileSystem::Posix(), whole, recipe).ok());
    for (int rank = 0; rank < 2; ++rank) {
      std::filesystem::create_directories(PlaceOf(rank));
      std::filesystem::copy(JoinPath(whole, StepDirName(kStep)), JoinPath(PlaceOf(rank), StepDirName(kStep)));
      std::filesystem::remove(ShardOf(rank, 1 - rank));
    }
  }

  std::string PlaceOf(int rank) const { return dir_ / fmt::format("node-{}", rank); }
  std::string ShardOf(int place, int rank) const {
    return JoinPath(JoinPath(PlaceOf(place), StepDirName(kStep)), ShardName(rank));
  }

  // The outcomes by rank of a load that reads nothing; how often it was called is added to `calls_`.
  std::vector<Status> Load(bool verify) {
    std::vector<Status> outcomes(2);
    PeerWorld(2).Run([&](JobRanks& ranks, PeerFiles& peers) {
      const int rank = ranks.rank();
      const LocalPlace place{.run_dir = PlaceOf(rank), .sharers = {rank}, .leader = true};
      LocalSteps steps(FileSystem::Posix(), place, "deadbeef", ranks, peers, [](const std::string&) {});
      outcomes[rank] = steps.Survey();
      const auto load = [&](PeerFileSystem&, const std::string&) {
        ++calls_;
        return OkStatus();
      };
      if (outcomes[rank].ok()) outcomes[rank] = steps.Load(kStep, load, verify);
    });
    return outcomes;
  }

  const TempDir dir_;
  std::atomic<int> calls_ = 0;
};

TEST_F(LocalStepsTest, AWholeStepIsLoadedWithAndWithoutVerification) {
  for (const bool verify : {false, true})
    for (const Status& outcome : Load(verify)) EXPECT_TRUE(outcome.ok()) << outcome.message();
  EXPECT_EQ(calls_, 4);
}

TEST_F(LocalStepsTest, AVerifiedStepIsRefusedBeforeTheLoadIfOneRanksFileIsDamaged) {
  FlipByte(ShardOf(1, 1), std::filesystem::file_size(ShardOf(1, 1)) / 2);
  for (const Status& outcome : Load(false)) EXPECT_TRUE(outcome.ok()) << outcome.message();
  EXPECT_EQ(calls_, 2);  // nobody has read the bytes
  for (const Status& outcome : Load(true)) {
    EXPECT_EQ(outcome.kind(), StatusKind::kCorrupt);
    EXPECT_NE(outcome.message().find(ShardName(1)), std::string::npos) << outcome.message();
  }
  EXPECT_EQ(calls_, 2);
}

}  // namespace
}  // namespace cairn
