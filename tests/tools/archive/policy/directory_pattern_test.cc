#include "tools/archive/policy/directory_pattern.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "ckpt/io/file_system.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

class DirectoryPatternTest : public testing::Test {
 protected:
  DirectoryPatternTest() {
    for (const char* path : {"a1/gpt", "a2/gpt", "a2/log", "[x]/gpt", ".hidden/gpt"})
      std::filesystem::create_directories(dir_ / path);
    EXPECT_TRUE(WriteSmallFile(FileSystem::Posix(), dir_ / "a3", "a file").ok());
  }
  // Relative to the directory.
  std::vector<std::string> Match(const std::string& pattern) {
    const DirectoryMatches matches = MatchDirectories(LiteralPattern(dir_.path()) + "/" + pattern);
    problems_ = matches.problems;
    std::vector<std::string> paths;
    for (const std::string& path : matches.paths) paths.push_back(path.substr(dir_.path().size() + 1));
    return paths;
  }
  using Paths = std::vector<std::string>;

  TempDir dir_;
  Paths problems_;
};

TEST_F(DirectoryPatternTest, MatchesLikeAShell) {
  EXPECT_EQ(Match("a*"), (Paths{"a1", "a2"}));
  EXPECT_EQ(Match("a*/gpt"), (Paths{"a1/gpt", "a2/gpt"}));
  EXPECT_EQ(Match("*/gpt"), (Paths{"[x]/gpt", "a1/gpt", "a2/gpt"}));
  EXPECT_EQ(Match("a2/{gpt,log}"), (Paths{"a2/gpt", "a2/log"}));
  EXPECT_EQ(Match("a{1,[2-9]}/gpt"), (Paths{"a1/gpt", "a2/gpt"}));
  EXPECT_EQ(Match("\\[x\\]/g?t"), (Paths{"[x]/gpt"}));
  EXPECT_EQ(Match("a1/gpt/"), (Paths{"a1/gpt"}));
  EXPECT_EQ(Match("none*"), Paths());
  EXPECT_EQ(Match("a3/*"), Paths());
  EXPECT_EQ(problems_, Paths());
}

TEST_F(DirectoryPatternTest, ListsADirectoryWithTwoNamesOnce) {
  std::filesystem::create_directory_symlink(dir_ / "a1", dir_ / "a9");
  EXPECT_EQ(Match("a*"), (Paths{"a1", "a2"}));
}

TEST_F(DirectoryPatternTest, NamesDirectoriesThatCannotBeRead) {
  std::filesystem::create_directory_symlink("a4", dir_ / "a4");  // a cycle
  for (const char* pattern : {"a*/gpt", "a*/g*", "a4"}) {
    (void)Match(pattern);
    ASSERT_EQ(problems_.size(), 1u) << pattern;
    EXPECT_NE(problems_[0].find(dir_ / "a4"), std::string::npos) << problems_[0];
  }
  EXPECT_EQ(Match("a*/gpt"), (Paths{"a1/gpt", "a2/gpt"}));  // the others still are
}

TEST_F(DirectoryPatternTest, MatchesPathsThatDoNotExist) {
  EXPECT_TRUE(MeansPath("/s/e*/{ckpt,gpt}", "/s/e7/gpt"));
  EXPECT_FALSE(MeansPath("/s/e*", "/s/e7/gpt"));
  EXPECT_TRUE(MeansPath(LiteralPattern("/s/[a]{b,c}*"), "/s/[a]{b,c}*"));
}

}  // namespace
}  // namespace cairn
