#include "tools/place/place.h"

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using Split = std::pair<std::string, std::string>;

TEST(PlaceTest, AColonNamesAMemberUnlessItIsPartOfAPath) {
  TempDir dir;
  FileSystem& fs = FileSystem::Posix();
  EXPECT_EQ(SplitMemberName(fs, "/store:gpt@20"), Split("/store", "gpt@20"));
  EXPECT_EQ(SplitMemberName(fs, "/store"), Split("/store", ""));
  EXPECT_EQ(SplitMemberName(fs, "/a:b/step-00000020"), Split("/a:b/step-00000020", ""));
  const std::string run = dir / "a:b";
  ASSERT_TRUE(fs.MakeDir(run).ok());
  EXPECT_EQ(SplitMemberName(fs, run), Split(run, ""));
  EXPECT_EQ(SplitMemberName(fs, run + "@20"), Split(run + "@20", ""));
  const auto member = Locate(fs, "/store:gpt@20");
  ASSERT_TRUE(member.ok());
  EXPECT_EQ(member->kind, PlaceKind::kMember);
  EXPECT_EQ(member->member, "gpt@20");
}

TEST(PlaceTest, AStepCarriesItsNumberAndItsSeal) {
  TempDir dir;
  FileSystem& fs = FileSystem::Posix();
  for (const char* name : {"checkpoint-100", "checkpoint-20"}) {
    ASSERT_TRUE(fs.MakeDir(dir / name).ok());
    ASSERT_TRUE(WriteSmallFile(fs, dir / (std::string(name) + "/trainer_state.json"), "{}").ok());
  }
  ASSERT_TRUE(WriteSmallFile(fs, dir / "checkpoint-20/.cairn-seal.json", "{}").ok());
  const auto run = PlaceAt(fs, dir.path());
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run->kind, PlaceKind::kForeignRun);
  ASSERT_EQ(run->steps.size(), 2u);
  EXPECT_EQ(run->steps[0].step, 20);  // by number, not by name
  EXPECT_TRUE(run->steps[0].sealed && run->steps[0].of_run && !run->steps[0].native);
  EXPECT_EQ(run->steps[1].step, 100);
  EXPECT_FALSE(run->steps[1].sealed);
  const auto alone = PlaceAt(fs, dir / "checkpoint-20");
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->kind, PlaceKind::kForeignStep);
  EXPECT_TRUE(alone->sealed && alone->steps.at(0).sealed && !alone->steps[0].of_run);
}

}  // namespace
}  // namespace cairn
