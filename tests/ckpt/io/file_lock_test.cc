#include "ckpt/io/file_lock.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/io/file_system.h"
#include "tests/fuzz/memory_file.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using enum FileLock::How;

TEST(FileLockTest, LocksAreExclusiveOrShared) {
  const TempDir temp;
  auto first = FileSystem::Posix().OpenLock(temp / "lock"),
       second = FileSystem::Posix().OpenLock(temp / "lock");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(*first->TryLock(kShared));
  EXPECT_TRUE(*second->TryLock(kShared));
  EXPECT_FALSE(*second->TryLock(kExclusive));
  { const FileLock gone = std::move(*first); }
  EXPECT_TRUE(*second->TryLock(kExclusive));
  EXPECT_FALSE(*FileSystem::Posix().OpenLock(temp / "lock")->TryLock(kShared));
}

TEST(FileLockTest, RefusesLinksAndMissingFiles) {
  const TempDir temp;
  ASSERT_EQ(::symlink("/dev/null", (temp / "link").c_str()), 0);
  EXPECT_FALSE(FileSystem::Posix().OpenLock(temp / "link").ok());
  EXPECT_EQ(FileSystem::Posix().OpenLock(temp / "none", FileLock::Missing::kError).status().kind(),
            StatusKind::kNotFound);
  EXPECT_FALSE(FileSystem::Posix().OpenLock(temp / "no/directory").ok());
}

TEST(FileLockTest, TheHolderReplacesTheText) {
  const TempDir temp;
  const auto holder = FileSystem::Posix().OpenLock(temp / "lock");
  EXPECT_TRUE(holder->WriteText("a longer text").ok());
  EXPECT_TRUE(holder->WriteText("a text").ok());
  EXPECT_EQ(*FileSystem::Posix().OpenLock(temp / "lock")->ReadText(100), "a text");
}

TEST(FileLockTest, WithoutOtherProcessesEverybodyGetsEveryLock) {
  MemoryFileSystem memory;
  auto first = memory.OpenLock("lock"), second = memory.OpenLock("lock");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(*first->TryLock(kExclusive));
  EXPECT_TRUE(*second->TryLock(kExclusive));
  EXPECT_TRUE(second->IsAtItsPath());
  EXPECT_FALSE(second->WriteText("held").ok());
}

TEST(FileSystemTest, ALinkHasFactsOfItsOwn) {
  const TempDir temp;
  FileSystem& fs = FileSystem::Posix();
  ASSERT_TRUE(WriteSmallFile(fs, temp / "file", "text").ok());
  ASSERT_TRUE(fs.MakeLink("file", temp / "link").ok());
  EXPECT_EQ(fs.MakeLink("file", temp / "link").kind(), StatusKind::kAlreadyExists);
  EXPECT_EQ(*fs.ReadLink(temp / "link"), "file");
  EXPECT_FALSE(fs.ReadLink(temp / "file").ok());

  ASSERT_TRUE(fs.SetMode(temp / "file", 02640).ok());
  EXPECT_FALSE(fs.SetMode(temp / "link", 0600).ok());
  ASSERT_TRUE(fs.SetModified(temp / "link", 100, 7).ok());
  ASSERT_TRUE(fs.SetModified(temp / "file", -5, 0).ok());
  const FileInfo file = *fs.Stat(temp / "link"), link = *fs.LinkStat(temp / "link");
  EXPECT_EQ(file.mode, 02640u);
  EXPECT_EQ(file.modified_unix_seconds, -5);
  EXPECT_EQ(link.modified_unix_nanoseconds, 100'000'000'007);
  EXPECT_EQ(file.user, ::geteuid());
  EXPECT_EQ(file.device, link.device);
  EXPECT_NE(file.inode, link.inode);
  EXPECT_TRUE(fs.SetOwner(temp / "link", link.user, link.group).ok());
  EXPECT_EQ(fs.SetOwner(temp / "none", link.user, link.group).kind(), StatusKind::kNotFound);
}

}  // namespace
}  // namespace cairn
