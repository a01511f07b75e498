#include "tools/serve/shared_memory.h"

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

TEST(SharedMemory, AFileBecomesAnotherAndIsFreeOnceThatIsRemoved) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir temp;
  const std::string path = temp / ".memory", step = temp / "shard";
  {
    auto memory = SharedMemory::MakeFile(fs, path, 8192);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    EXPECT_EQ(memory->path(), path);
    EXPECT_FALSE(memory->IsHeld());
    std::ranges::fill(memory->bytes(), std::byte{'a'});
    ASSERT_TRUE(fs.AddName(path, step).ok());
    EXPECT_EQ(fs.AddName(path, step).kind(), StatusKind::kAlreadyExists);
    EXPECT_TRUE(memory->IsHeld());
    EXPECT_EQ(*ReadSmallFile(fs, step, 10000), std::string(8192, 'a'));
    EXPECT_EQ(SharedMemory::MakeFile(fs, path, 8192).status().kind(), StatusKind::kAlreadyExists);
    ASSERT_TRUE(fs.RemoveFile(step).ok());
    EXPECT_FALSE(memory->IsHeld());
    ASSERT_TRUE(fs.AddName(path, step).ok());
  }
  EXPECT_FALSE(fs.Stat(path).ok());
  EXPECT_EQ(*ReadSmallFile(fs, step, 10000), std::string(8192, 'a'));  // a step outlives its process
}

TEST(SharedMemory, WithoutANameItIsNeverHeld) {
  const auto memory = SharedMemory::Make(4096);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->path(), "");
  EXPECT_FALSE(memory->IsHeld());
}

TEST(SharedMemory, MoreThanThereIsIsRefused) {
  const TempDir temp;
  const auto memory = SharedMemory::MakeFile(FileSystem::Posix(), temp / ".memory", uint64_t{1} << 55);
  EXPECT_EQ(memory.status().kind(), StatusKind::kNoSpace);
  EXPECT_FALSE(FileSystem::Posix().Stat(temp / ".memory").ok());
}

}  // namespace
}  // namespace cairn
