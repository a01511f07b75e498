// The kind: a name that a person gave belongs to one content. Whatever happens to the run meanwhile (a save
// of the same number, retention, a copy, damage, a removed step), the name leads to that content or says that
// it is gone.
#include "ckpt/run/step_tags.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ckpt/model/layout.h"
#include "ckpt/run/run_dir.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

class StepTagsTest : public testing::Test {
 protected:
  StepTagsTest() {
    for (const int64_t step : {10, 20, 30, 40, 50}) Save(step);
  }
  void Save(int64_t step, uint64_t seed = 1) {
    StepRecipe recipe = RecipeOf({.layers = 1, .hidden = 16}, {});
    recipe.step = step;
    recipe.seed = seed;
    EXPECT_TRUE(MakeStep(fs_, run_, recipe).ok());
  }
  std::string Step(int64_t step) const { return JoinPath(run_, StepDirName(step)); }
  std::string Where(const std::string& tag) const {
    const auto place = StepOfTag(fs_, run_, tag);
    return place.ok() ? std::string(stdfs::path(*place).filename()) : place.status().message();
  }
  std::vector<int64_t> Retain(int64_t keep_last) {
    EXPECT_TRUE(ApplyRetention(fs_, run_, {.keep_last = keep_last}, "ab", [&](const Status& left) {
                  left_.push_back(left.message());
                }).ok());
    return *ListSteps(fs_, run_);
  }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir dir_;
  std::string run_ = dir_ / "gpt";
  std::vector<std::string> left_;
};

TEST_F(StepTagsTest, RetentionKeepsTaggedStepsUntilTheTagIsRemoved) {
  ASSERT_TRUE(AddTag(fs_, Step(10), "best").ok());
  ASSERT_TRUE(AddTag(fs_, Step(10), "v1.0").ok());
  ASSERT_TRUE(AddTag(fs_, Step(30) + "/", "best-30").ok());
  EXPECT_EQ(Retain(2), (std::vector<int64_t>{10, 30, 40, 50}));
  EXPECT_TRUE(left_.empty());
  EXPECT_EQ(Where("v1.0"), "step-00000010");
  ASSERT_TRUE(RemoveTag(fs_, run_, "best").ok());
  EXPECT_EQ(Retain(2).front(), 10);
  ASSERT_TRUE(RemoveTag(fs_, run_, "v1.0").ok());
  EXPECT_EQ(Retain(2), (std::vector<int64_t>{30, 40, 50}));
}

TEST_F(StepTagsTest, TheTagStaysWithTheSaveThatItWasGivenTo) {
  ASSERT_TRUE(AddTag(fs_, Step(50), "best").ok());
  stdfs::rename(Step(50), Step(50) + ".superseded-ab");
  Save(50, 2);
  EXPECT_EQ(Where("best"), "step-00000050.superseded-ab");
  Save(60);
  EXPECT_EQ(Retain(2), (std::vector<int64_t>{50, 60}));
  EXPECT_TRUE(stdfs::exists(Step(50) + ".superseded-ab"));
  stdfs::remove_all(Step(50) + ".superseded-ab");
  EXPECT_NE(Where("best").find("is gone, and its number was saved again"), std::string::npos);
  stdfs::remove_all(Step(50));
  EXPECT_NE(Where("best").find("step 50, which the tag 'best' names, is gone; cairn tag "),
            std::string::npos);
}

TEST_F(StepTagsTest, ACopiedRunHasTheTags) {
  ASSERT_TRUE(AddTag(fs_, Step(20), "best").ok());
  stdfs::copy(run_, dir_ / "copy", stdfs::copy_options::recursive);
  EXPECT_EQ(*StepOfTag(fs_, dir_ / "copy", "best"), dir_ / "copy/step-00000020");
}

TEST_F(StepTagsTest, RetentionRemovesNothingIfTheTagsCannotBeRead) {
  for (const char* text :
       {"", "{", "[]", R"({"tags": {"best": 3}, "version": 1})", R"({"tags": {}, "version": 2})",
        R"({"tags": {"7": {"step": 10, "manifest": "ab"}}, "version": 1})"}) {
    std::ofstream(JoinPath(run_, kTagsName)) << text;
    left_.clear();
    EXPECT_EQ(Retain(2).size(), 5u) << text;
    ASSERT_EQ(left_.size(), 1u) << text;
    EXPECT_NE(left_[0].find("gpt/tags: "), std::string::npos) << left_[0];
    EXPECT_FALSE(AddTag(fs_, Step(10), "best").ok()) << text;
  }
}

TEST_F(StepTagsTest, ANameIsNeitherANumberNorAPath) {
  for (const char* name : {"", "7", "-x", "a/b", "a b", "a@b", "é", ".x"})
    EXPECT_EQ(AddTag(fs_, Step(10), name).kind(), StatusKind::kInvalidArgument) << name;
  EXPECT_EQ(AddTag(fs_, Step(10), std::string(65, 'a')).kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(AddTag(fs_, dir_.path(), "a").kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(AddTag(fs_, Step(11), "a").kind(), StatusKind::kNotFound);
  ASSERT_TRUE(AddTag(fs_, Step(10), "a").ok());
  EXPECT_TRUE(AddTag(fs_, Step(10), "a").ok());
  EXPECT_EQ(AddTag(fs_, Step(20), "a").kind(), StatusKind::kAlreadyExists);
  EXPECT_EQ(RemoveTag(fs_, run_, "b").kind(), StatusKind::kNotFound);
  EXPECT_EQ(Where("b"), run_ + ": no tag 'b' in it; it has the tags a");
  ASSERT_TRUE(AddTag(fs_, Step(20), "c", /*dry_run=*/true).ok());
  ASSERT_TRUE(RemoveTag(fs_, run_, "a", /*dry_run=*/true).ok());
  EXPECT_EQ(ReadTags(fs_, run_)->size(), 1u);
}

}  // namespace
}  // namespace cairn
