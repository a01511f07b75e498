#include "tools/check/verified_successor.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "ckpt/step/step_reader.h"
#include "tests/support/file_bytes.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"
#include "tests/support/transfers.h"
#include "tools/check/verify_record.h"

namespace cairn {
namespace {

class VerifiedSuccessorTest : public testing::Test {
 protected:
  VerifiedSuccessorTest() {
    for (const int64_t step : {10, 20, 30}) Save(step);
  }
  void Save(int64_t step) {
    StepRecipe recipe = RecipeOf({.layers = 1, .hidden = 16}, {});
    recipe.step = step;
    recipe.state["iteration"] = step;
    ASSERT_TRUE(MakeStep(fs_, run_, recipe).ok());
  }
  std::string Path(int64_t step) const { return JoinPath(run_, StepDirName(step)); }
  Result<HealthySuccessor> Find(int64_t step) const {
    return FindVerifiedSuccessor(fs_, Path(step), /*show_progress=*/false);
  }
  Trust TrustOf(int64_t step) const {
    const Manifest manifest = (*StepReader::Open(fs_, Path(step)))->manifest();
    return StandingOf(ReadVerifyRecord(fs_, Path(step), manifest), StatFiles(fs_, Path(step), manifest))
        .trust;
  }
  void Flip(int64_t step) const {
    const std::string shard = Path(step) + "/shard-00000.h5";
    FlipByte(shard, std::filesystem::file_size(shard) / 2);
  }

  const TempDir temp_;
  const std::string run_ = temp_ / "gpt";
  FileSystem& fs_ = FileSystem::Posix();
};

TEST_F(VerifiedSuccessorTest, ReadsAStepOnceThenTrustsTheRecord) {
  EXPECT_EQ(Find(30).status().kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(TrustOf(30), Trust::kUnverified);
  const auto stays = Find(10);
  ASSERT_TRUE(stays.ok()) << stays.status().message();
  EXPECT_NE(stays->Text().find(Path(30)), std::string::npos);
  EXPECT_EQ(TrustOf(30), Trust::kVerified);
  EXPECT_TRUE(Find(20).ok());
  EXPECT_EQ(TrustOf(20), Trust::kUnverified);
  Save(40);
  EXPECT_TRUE(Find(10).ok());  // 30 is enough
  EXPECT_EQ(TrustOf(40), Trust::kUnverified);
  Flip(30);
  EXPECT_FALSE(stays->Check(fs_).ok());
  EXPECT_TRUE(Find(10).ok());
  EXPECT_EQ(TrustOf(40), Trust::kVerified);
}

TEST_F(VerifiedSuccessorTest, ADamagedNewestStepIsNotASuccessor) {
  Flip(30);
  EXPECT_TRUE(Find(10).ok());
  EXPECT_EQ(TrustOf(30), Trust::kDamaged);
  EXPECT_EQ(TrustOf(20), Trust::kVerified);
  const Status refused = Find(20).status();
  EXPECT_EQ(refused.kind(), StatusKind::kCorrupt);
  EXPECT_NE(refused.message().find(Path(30)), std::string::npos) << refused.message();
  Flip(30);  // repaired: its change time differs, so it is read again
  EXPECT_TRUE(Find(20).ok());
}

TEST_F(VerifiedSuccessorTest, AStepWithOnlyWeightsIsNotASuccessor) {
  const auto step = StepReader::Open(fs_, Path(30));
  StripOptions weights{.dtype = Dtype::kF16, .format = FindSystem("native")};
  const auto stripped = Strip(fs_, **step, temp_ / "out", weights);
  ASSERT_TRUE(stripped.ok()) << stripped.status().message();
  std::filesystem::remove_all(Path(30));
  std::filesystem::rename(stripped->path, Path(30));
  EXPECT_TRUE(Find(10).ok());
  const Status refused = Find(20).status();
  EXPECT_EQ(refused.kind(), StatusKind::kCorrupt);
  EXPECT_NE(refused.message().find("master"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace cairn
