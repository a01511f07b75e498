#include "convert/verbs/virtual_step.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "ckpt/run/run_dir.h"
#include "ckpt/run/step_hold.h"
#include "convert/stream/fingerprint.h"
#include "tests/support/make_step.h"
#include "tests/support/open_step.h"
#include "tests/support/sparse_step.h"
#include "tests/support/temp_dir.h"
#include "tests/support/unsynced_file_system.h"

namespace cairn {
namespace {

std::string HexOf(StepReader& step) {
  const auto sums = FingerprintOf(step);
  EXPECT_TRUE(sums.ok()) << sums.status().message();
  return sums.ok() ? ToHex(sums->overall) : "";
}

class VirtualStepTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeStep(Fs(), temp_ / "run", RecipeOf({}, {.tp = 2, .dp = 2, .zero = 1})).ok());
  }
  Result<VirtualStep> Reshape(const std::string& source, const std::string& target,
                              const Topology& topology) {
    return ReshapeVirtually(Fs(), *Open(temp_ / source), temp_ / target, {.target = topology});
  }
  TempDir temp_;
};

TEST_F(VirtualStepTest, HasTheNewTopologyAndTheSameValues) {
  const auto result = Reshape("run", "new", {.tp = 1, .pp = 2, .dp = 1});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(Fs().List(result->path)->size(), 2);  // index and manifest
  const auto step = Open(temp_ / "new");
  EXPECT_EQ(step->manifest().topology, (Topology{.tp = 1, .pp = 2, .dp = 1}));
  EXPECT_EQ(HexOf(*step), HexOf(*Open(temp_ / "run")));
}

TEST_F(VirtualStepTest, AVirtualStepOfAVirtualStepNamesTheRealShards) {
  ASSERT_TRUE(Reshape("run", "new", {.tp = 4}).ok());
  ASSERT_TRUE(Reshape("new", "newer", {.pp = 2}).ok());
  std::filesystem::remove_all(std::filesystem::path(temp_ / "new"));
  EXPECT_EQ(HexOf(*Open(temp_ / "newer")), HexOf(*Open(temp_ / "run")));
}

TEST_F(VirtualStepTest, NamesMissingShardsWithTheirPaths) {
  const auto result = Reshape("run", "new", {.tp = 4});
  std::filesystem::remove_all(std::filesystem::path(temp_ / "run"));
  const auto step = StepReader::Open(Fs(), result->path);
  EXPECT_EQ(step.status().kind(), StatusKind::kNotFound);
  EXPECT_NE(step.status().message().find("run/step-00000100/shard-00000.h5"), std::string::npos)
      << step.status().message();
}

// A renamed step, or one on an unmounted file system, may still need the shards.
TEST_F(VirtualStepTest, KeepsItsShardsUntilTheUserReleasesThem) {
  StepRecipe newer = RecipeOf({}, {.tp = 2, .dp = 2, .zero = 1});
  for (newer.step = 200; newer.step <= 300; newer.step += 100)  // the newest two always stay
    ASSERT_TRUE(MakeStep(Fs(), temp_ / "run", newer).ok());
  const std::string old = JoinPath(temp_ / "run", StepDirName(100));
  const auto result = ReshapeVirtually(Fs(), *Open(old), temp_ / "new", {.target = {.tp = 1}});
  ASSERT_TRUE(result.ok() && result->held.ok()) << result.status().message();
  const auto holds = [&] { return HoldsOf(Fs(), temp_ / "run", 100).value(); };
  const auto retain = [&] {
    std::string said;
    const auto left = [&](const Status& why) { said += why.message(); };
    for (const Hold& hold : holds())
      std::filesystem::last_write_time(hold.file,
                                       std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
    EXPECT_TRUE(ApplyRetention(Fs(), temp_ / "run", {.keep_last = 1}, "1a", left).ok());
    return said;
  };
  ASSERT_EQ(holds().size(), 1u);
  EXPECT_EQ(holds()[0].holder, result->path);
  retain();
  EXPECT_TRUE(StepReader::Open(Fs(), result->path).ok());

  std::filesystem::rename(temp_ / "new", temp_ / "renamed");
  EXPECT_NE(retain().find("new/step-00000100 uses its shards"), std::string::npos);
  EXPECT_FALSE(holds()[0].there);
  const std::string renamed = temp_ / "renamed/step-00000100";
  EXPECT_TRUE(OpenCheckpoint(Fs(), temp_ / "renamed", [](const Status&) {}).ok());
  ASSERT_EQ(holds().size(), 1u);  // the same hold, renewed
  EXPECT_EQ(holds()[0].holder, renamed);
  EXPECT_TRUE(holds()[0].there);

  std::filesystem::remove_all(std::filesystem::path(temp_ / "renamed"));
  const std::string said = retain();
  EXPECT_TRUE(Fs().Stat(old).ok());
  EXPECT_NE(said.find("rm " + holds()[0].file), std::string::npos) << said;
  std::filesystem::remove(holds()[0].file);
  EXPECT_EQ(retain(), "");
  EXPECT_FALSE(Fs().Stat(old).ok());
}

TEST_F(VirtualStepTest, ReleasesItsShardsWhenItIsRetired) {
  StepRecipe recipe = RecipeOf({}, {.tp = 2, .dp = 2, .zero = 1});
  const auto result = Reshape("run", "new", {.tp = 1});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(HoldsOf(Fs(), temp_ / "run", 100)->size(), 1u);
  for (recipe.step = 200; recipe.step <= 300; recipe.step += 100)
    ASSERT_TRUE(MakeStep(Fs(), temp_ / "new", recipe).ok());
  ASSERT_TRUE(ApplyRetention(Fs(), temp_ / "new", {.keep_last = 1}, "1a").ok());
  EXPECT_FALSE(Fs().Stat(result->path).ok());
  EXPECT_EQ(HoldsOf(Fs(), temp_ / "run", 100)->size(), 0u);
}

// Killed between the announcement and the rename that makes the step.
TEST_F(VirtualStepTest, AHoldOfAMissingStepExpiresAfterAnHour) {
  const std::string held = temp_ / "run/step-00000100";
  ASSERT_TRUE(AnnounceHold(Fs(), held, temp_ / "new/step-00000100", temp_ / "gone").ok());
  const auto holds = [&] { return HoldsOf(Fs(), temp_ / "run", 100).value(); };
  ASSERT_EQ(holds().size(), 1u);
  std::filesystem::last_write_time(holds()[0].file,
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_EQ(holds().size(), 0u);
}

// A file server whose clock is two hours behind this host's.
class LateClock final : public UnsyncedFileSystem {
 public:
  Result<FileInfo> Stat(const std::string& path) override {
    Result<FileInfo> info = UnsyncedFileSystem::Stat(path);
    if (info.ok()) info->modified_unix_seconds -= 7200;
    return info;
  }
};

TEST_F(VirtualStepTest, AHoldAgesByTheFileSystemsClock) {
  LateClock server;
  const std::string held = temp_ / "run/step-00000100";
  ASSERT_TRUE(AnnounceHold(server, held, temp_ / "new/step-00000100", temp_ / "gone").ok());
  const auto holds = [&] { return HoldsOf(server, temp_ / "run", 100).value(); };
  ASSERT_EQ(holds().size(), 1u);
  EXPECT_EQ(server.List(temp_ / "run/held")->size(), 1u);  // nothing else is left there
  std::filesystem::last_write_time(holds()[0].file,
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_EQ(holds().size(), 0u);
}

TEST_F(VirtualStepTest, RefusesImpossibleTopologiesAndLeavesNothing) {
  EXPECT_EQ(Reshape("run", "new", {.tp = 3}).status().kind(), StatusKind::kInvalidArgument);
  EXPECT_FALSE(Fs().Stat(temp_ / "new").ok());
  EXPECT_EQ(Reshape("run", "run", {.tp = 1}).status().kind(), StatusKind::kAlreadyExists);
}

// 2.4 TB of 512 ranks, in files without a single block.
TEST_F(VirtualStepTest, WritesOnlyMetadata) {
  const StepRecipe recipe =
      RecipeOf({.layers = 8, .hidden = 42240, .heads = 96, .ffn = 168960, .vocab = 250880},
               {.tp = 8, .pp = 8, .dp = 8, .zero = 1});
  const auto bytes = WriteSparseStep(Fs(), temp_ / "big", recipe);
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  EXPECT_GT(*bytes, 2'400'000'000'000);

  const auto source = Open(temp_ / "big");
  const auto result =
      ReshapeVirtually(Fs(), *source, temp_ / "new", {.target = {.tp = 4, .pp = 4, .dp = 32, .zero = 1}});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_LT(result->bytes_written, 32 << 20);
  EXPECT_EQ(source->bytes_read(), 0);
  EXPECT_EQ(Open(temp_ / "new")->catalog().bytes(), source->catalog().bytes());
}

// 671 B parameters, nearly all of experts, with their optimizer on 2,048 ranks.
TEST_F(VirtualStepTest, AMixtureOnThousandsOfRanksIsMetadataToo) {
  const StepRecipe recipe = RecipeOf({.layers = 61,
                                      .hidden = 7168,
                                      .heads = 128,
                                      .ffn = 2048,
                                      .vocab = 129280,
                                      .tied = false,
                                      .experts = 256,
                                      .expert_ffn = 2048},
                                     {.pp = 16, .dp = 128, .zero = 1, .ep = 64});
  const auto bytes = WriteSparseStep(Fs(), temp_ / "big", recipe);
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  EXPECT_GT(*bytes, 9'000'000'000'000);
  const auto source = Open(temp_ / "big");
  const Topology target{.tp = 8, .pp = 8, .dp = 8, .ep = 32, .etp = 2};
  const auto result = ReshapeVirtually(Fs(), *source, temp_ / "new", {.target = target});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(source->bytes_read(), 0);
  const auto step = Open(temp_ / "new");
  EXPECT_EQ(step->manifest().topology, target);
  EXPECT_EQ(step->catalog().bytes(), source->catalog().bytes());
}

}  // namespace
}  // namespace cairn
