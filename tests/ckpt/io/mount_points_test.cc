#include "ckpt/io/mount_points.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

TEST(MountPointsTest, ThoseAtAndBelowADirectoryAndNoNeighbours) {
  const std::string info =
      "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
      "22 21 0:20 / /scratch rw - lustre a@tcp:/b rw\n"
      "30 22 8:1 /home /scratch/runs/a rw - ext4 /dev/root rw\n"
      "31 22 8:1 /f /scratch/runs/a/shard\\0401\\134 rw - ext4 /dev/root rw\n"
      "32 22 0:33 / /scratch/runs/ab rw - tmpfs tmpfs rw";
  using Paths = std::vector<std::string>;
  EXPECT_EQ(MountPointsIn(info, "/scratch/runs/a"), (Paths{"/scratch/runs/a", "/scratch/runs/a/shard 1\\"}));
  EXPECT_EQ(MountPointsIn(info, "/scratch/runs/ab"), Paths{"/scratch/runs/ab"});
  EXPECT_EQ(MountPointsIn(info, "/scratch/runs/a/b"), Paths{});
  EXPECT_EQ(MountPointsIn("", "/scratch"), Paths{});
  EXPECT_EQ(MountPointsIn("\n\\1 x\n", "/scratch"), Paths{});
}

TEST(MountPointsTest, OnlyAPlainDirectoryHasNone) {
  const TempDir temp;
  std::filesystem::create_directories(temp / "a/b");
  EXPECT_TRUE(CheckNoMount(temp / "a", {"b"}).ok());
  EXPECT_EQ(CheckNoMount("/proc").kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(CheckNoMount(temp / "a", {"../../../../../../../../proc"}).kind(), StatusKind::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
