#include "ckpt/io/directory_room.h"

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

TEST(DirectoryRoomTest, ReadsQuotasAsLfsPrintsThem) {
  // The limits are the hard ones, in KiB; a long mount point has a line of its own; over its quota: a star.
  const Result<QuotaUse> use =
      ReadLustreQuota("user 7", "/scratch/of/a/project\n   1300* 1000 2000 6d23h59m58s 95 0 100 -\n");
  ASSERT_TRUE(use.ok()) << use.status().message();
  EXPECT_EQ(use->bytes, 1300u << 10);
  EXPECT_EQ(LeftOf(*use).bytes, 700u << 10);
  EXPECT_EQ(LeftOf(*use).files, 5u);
  const Result<QuotaUse> none = ReadLustreQuota("user 7", "/scratch 1300 0 0 - 95 0 0 -");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(LeftOf(*none).bytes, UINT64_MAX);
  EXPECT_EQ(LeftOf(*none).files, UINT64_MAX);
  EXPECT_EQ(LeftOf({.bytes = 9, .byte_limit = 5, .files = 3, .file_limit = 3}).bytes, 0u);
  EXPECT_EQ(ReadLustreQuota("user 7", "Permission denied.").status().kind(), StatusKind::kNotSupported);
}

TEST(DirectoryRoomTest, ComparesBytesAndFilesWithFreeSpace) {
  const TempDir dir{TempDir::Place::kMemory};
  const std::string place = dir / "not/there/yet";
  FileSystem& fs = FileSystem::Posix();
  const Result<std::vector<RoomLimit>> limits = LimitsAt(fs, place);
  ASSERT_TRUE(limits.ok()) << limits.status().message();
  EXPECT_TRUE(CheckRoom(place, {.bytes = 1, .files = 1}, *limits).ok());
  const Status bytes = CheckRoom(place, {.bytes = UINT64_MAX}, *limits);
  EXPECT_EQ(bytes.kind(), StatusKind::kNoSpace);
  EXPECT_TRUE(bytes.message().starts_with(place + ": needs about 18446744073709551615 bytes, but only "));
  const Result<Capacity> capacity = CapacityOf(dir.path());
  ASSERT_TRUE(capacity.ok());
  if (capacity->files == 0) GTEST_SKIP() << "this file system does not count files";
  EXPECT_EQ(CheckRoom(place, {.files = capacity->files + 1}, *limits).kind(), StatusKind::kNoSpace);
}

}  // namespace
}  // namespace cairn
