#include "ckpt/io/file_lock.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using enum FileLock::How;

TEST(FileLockTest, LocksAreExclusiveOrShared) {
  const TempDir temp;
  auto first = FileLock::Open(temp / "lock"), second = FileLock::Open(temp / "lock");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(*first->TryLock(kShared));
  EXPECT_TRUE(*second->TryLock(kShared));
  EXPECT_FALSE(*second->TryLock(kExclusive));
  { const FileLock gone = std::move(*first); }
  EXPECT_TRUE(*second->TryLock(kExclusive));
  EXPECT_FALSE(*FileLock::Open(temp / "lock")->TryLock(kShared));
}

TEST(FileLockTest, RefusesLinksAndMissingFiles) {
  const TempDir temp;
  ASSERT_EQ(::symlink("/dev/null", (temp / "link").c_str()), 0);
  EXPECT_FALSE(FileLock::Open(temp / "link").ok());
  EXPECT_EQ(FileLock::Open(temp / "none", FileLock::Missing::kError).status().kind(), StatusKind::kNotFound);
  EXPECT_FALSE(FileLock::Open(temp / "no/directory").ok());
}

}  // namespace
}  // namespace cairn
