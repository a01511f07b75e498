#include "ckpt/io/lock_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ckpt/base/this_process.h"
#include "ckpt/io/file_system.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using enum FileLock::How;
using testing::HasSubstr;

class LockFileTest : public testing::Test {
 protected:
  LockFile Open() const { return LockFile::Open(FileSystem::Posix(), path_).value(); }
  std::string Text() const { return ReadSmallFile(fs_, path_, 4096).value(); }
  void Write(const std::string& text) const { std::ofstream(path_) << text; }

  FileSystem& fs_ = FileSystem::Posix();
  const TempDir dir_{TempDir::Place::kMemory};
  const std::string path_ = dir_ / "lock";
  const LockHolder other_{.host = "n3", .pid = 71, .job = "Slurm job 16", .since = "then", .word = "abc"};
};

TEST_F(LockFileTest, TheHolderIsNamedUntilItReleasesTheLock) {
  {
    LockFile holder = Open(), refused = Open();
    ASSERT_TRUE(*holder.TryLock(kExclusive));
    EXPECT_FALSE(*refused.TryLock(kExclusive));
    EXPECT_THAT(refused.HeldBy(), HasSubstr(fmt::format(": pid {} on {}", ::getpid(), HostName())));
    EXPECT_TRUE(holder.CheckHolder().ok());
    const LockFile moved = std::move(holder);
    EXPECT_TRUE(moved.CheckHolder().ok());
  }
  EXPECT_EQ(Text(), "");
}

TEST_F(LockFileTest, AKilledHolderIsReplaced) {
  Write(EncodeLockHolder(other_));
  LockFile lock = Open();
  EXPECT_EQ(lock.HeldBy(), ": pid 71 on n3 (Slurm job 16) since then");
  ASSERT_TRUE(*lock.TryLock(kExclusive));
  EXPECT_THAT(lock.HeldBy(), HasSubstr(HostName()));
}

TEST_F(LockFileTest, AnUnreadableTextIsIgnored) {
  for (const std::string text : {"", "{", "[]", "{\"host\": 7}", "\xff\xfe", "null"}) {
    Write(text);
    LockFile lock = Open();
    EXPECT_EQ(lock.HeldBy(), "") << text;
    EXPECT_TRUE(*lock.TryLock(kExclusive)) << text;
    EXPECT_TRUE(lock.CheckHolder().ok()) << text;
  }
  Write(std::string(1 << 20, 'x'));
  LockFile lock = Open();
  ASSERT_TRUE(*lock.TryLock(kExclusive));
  EXPECT_TRUE(lock.CheckHolder().ok());
}

// The kind: a lock file is one file with another one, because somebody linked the two.
TEST_F(LockFileTest, AFileThatIsNotALockIsNotWritten) {
  for (const std::string text : {"precious", "{\"weights\": 1}", "PK\x03\x04"}) {
    std::ofstream(dir_ / "theirs") << text;
    std::filesystem::create_hard_link(dir_ / "theirs", path_);
    for (const bool again : {false, true}) {
      LockFile lock = Open(), second = Open();
      EXPECT_TRUE(*lock.TryLock(kExclusive) && lock.CheckHolder().ok()) << again;
      EXPECT_FALSE(*second.TryLock(kExclusive));
    }
    EXPECT_EQ(ReadSmallFile(fs_, dir_ / "theirs", 100).value(), text);
    std::filesystem::remove(path_);
  }
}

TEST_F(LockFileTest, ALinkedCopyOfADirectoryHasALockOfItsOwn) {
  for (const char* name : {"run", "copy", "moved"}) std::filesystem::create_directory(dir_ / name);
  const auto open = [&](const char* name) {
    return LockFile::Open(FileSystem::Posix(), dir_ / name + "/.lock").value();
  };
  LockFile original = open("run");
  ASSERT_TRUE(*original.TryLock(kExclusive));
  std::filesystem::create_hard_link(dir_ / "run/.lock", dir_ / "copy/.lock");
  EXPECT_FALSE(*open("run").TryLock(kExclusive));
  LockFile copy = open("copy");
  EXPECT_TRUE(*copy.TryLock(kExclusive) && copy.file().IsAtItsPath() && copy.CheckHolder().ok());
  EXPECT_TRUE(original.file().IsAtItsPath() && original.CheckHolder().ok());
  // The copy trains first, and the original starts later.
  std::filesystem::create_hard_link(dir_ / "copy/.lock", dir_ / "moved/.lock");
  EXPECT_TRUE(*open("moved").TryLock(kExclusive));
  EXPECT_FALSE(*open("copy").TryLock(kExclusive));
  // A run that is renamed while it trains stays locked.
  std::filesystem::rename(dir_ / "run", dir_ / "renamed");
  EXPECT_FALSE(*open("renamed").TryLock(kExclusive));
}

TEST_F(LockFileTest, SharedHoldersWriteNothing) {
  Write("garbage");
  {
    LockFile lock = Open();
    ASSERT_TRUE(*lock.TryLock(kShared));
    EXPECT_TRUE(lock.CheckHolder().ok());
  }
  EXPECT_EQ(Text(), "garbage");
}

// The lock of a team: the process that began it leaves before others.
TEST_F(LockFileTest, TheTextStaysWhileTheLockIsShared) {
  LockFile second = Open();
  {
    LockFile first = Open();
    ASSERT_TRUE(*first.TryLock(kExclusive));
    ASSERT_TRUE(*first.TryLock(kShared));
    ASSERT_TRUE(*second.TryLock(kShared));
  }
  EXPECT_THAT(Open().HeldBy(), HasSubstr(HostName()));
  ASSERT_TRUE(*second.TryLock(kExclusive));
  EXPECT_TRUE(second.CheckHolder().ok());
}

// As with Lustre's localflock: each host has its own lock.
TEST_F(LockFileTest, DetectsAnotherHostWithTheSameLockAndNamesIt) {
  {
    LockFile lock = Open();
    ASSERT_TRUE(*lock.TryLock(kExclusive));
    Write(EncodeLockHolder(other_));
    const Status seen = lock.CheckHolder();
    EXPECT_EQ(seen.kind(), StatusKind::kAlreadyExists);
    EXPECT_THAT(seen.message(), HasSubstr(path_ + ": another process took this lock"));
    EXPECT_THAT(seen.message(), HasSubstr("pid 71 on n3 (Slurm job 16) since then"));
  }
  EXPECT_EQ(Text(), EncodeLockHolder(other_));
  LockFile lock = Open();
  ASSERT_TRUE(*lock.TryLock(kExclusive));
  Write("");  // the other has ended since
  EXPECT_EQ(lock.CheckHolder().kind(), StatusKind::kAlreadyExists);
  std::filesystem::remove(path_);
  EXPECT_EQ(lock.CheckHolder().kind(), StatusKind::kNotFound);
}

TEST(ThisProcessTest, NamesTheBatchJobAsItsSystemDoes) {
  const auto job = [](const char* name, const char* restarts) {
    return BatchJob([=](const char* asked) -> const char* {
      if (std::string_view(asked) == "SLURM_RESTART_COUNT") return restarts;
      return std::string_view(asked) == name ? "16" : nullptr;
    });
  };
  EXPECT_EQ(job("SLURM_JOB_ID", nullptr), "Slurm job 16");
  EXPECT_EQ(job("SLURM_JOB_ID", "2"), "Slurm job 16, restart 2");
  EXPECT_EQ(job("PBS_JOBID", nullptr), "PBS job 16");
  EXPECT_EQ(job("HOME", nullptr), "");
}

}  // namespace
}  // namespace cairn
