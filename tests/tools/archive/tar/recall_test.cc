#include "tools/archive/tar/recall.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(StubTest, ALargeFileWithFewBlocksIsAStub) {
  const struct {
    const char* what;
    uint64_t bytes, allocated;
    bool stub;
  } kCases[] = {
      {"on the disk", 100 * kMiB, 100 * kMiB, false},
      {"on tape", 100 * kMiB, 0, true},
      {"on tape, with its first block kept", 100 * kMiB, 4096, true},
      {"compressed by the file system", 100 * kMiB, 30 * kMiB, false},
      {"small files may lie in the inode", 1000, 0, false},
      {"empty", 0, 0, false},
      {"the least that is moved", kMiB, 0, true},
  };
  for (const auto& c : kCases)
    EXPECT_EQ(LooksLikeStub({.bytes = c.bytes, .allocated_bytes = c.allocated}), c.stub) << c.what;
}

class RecallTest : public testing::Test {
 protected:
  std::string Stub(const std::string& name) {
    const std::string path = dir_ / name;
    std::ofstream(path).put('x');
    std::filesystem::resize_file(path, 0);
    std::filesystem::resize_file(path, 2 * kMiB);
    return path;
  }
  // Gives each file its blocks.
  const std::string bring_ = "for f in {paths}; do head -c 2097152 /dev/urandom > \"$f\"; done #";

  TempDir dir_;
};

TEST_F(RecallTest, WithoutACommandRecallsNothing) {
  const std::vector<std::string> paths = {Stub("a"), Stub("b")};
  EXPECT_EQ(*TryRecall(FileSystem::Posix(), paths, {}), paths);
  const auto recalled = Recall(FileSystem::Posix(), paths, {});
  EXPECT_NE(recalled.status().message().find("on tape, needs recall"), std::string::npos);
  EXPECT_NE(recalled.status().kind(), StatusKind::kCorrupt);
  EXPECT_TRUE(Recall(FileSystem::Posix(), {dir_ / "gone"}, {}).ok());
}

TEST_F(RecallTest, TheCommandMustRecallAllFiles) {
  const std::vector<std::string> paths = {Stub("a"), Stub("b c")};
  const RecallCommands only_first{.stat = "",
                                  .recall = "head -c 2097152 /dev/urandom > " + (dir_ / "a") + " #"};
  EXPECT_EQ(*TryRecall(FileSystem::Posix(), paths, only_first), std::vector{paths[1]});
  EXPECT_NE(Recall(FileSystem::Posix(), paths, {.stat = "", .recall = "true"})
                .status()
                .message()
                .find("still on tape"),
            std::string::npos);
  EXPECT_EQ(*Recall(FileSystem::Posix(), paths, {.stat = "", .recall = bring_}), 1u);
  EXPECT_FALSE(IsStub(FileSystem::Posix(), paths[1]));
  EXPECT_EQ(*Recall(FileSystem::Posix(), paths, {.stat = "", .recall = bring_}), 0u);
}

}  // namespace
}  // namespace cairn
