#include "ckpt/io/mount_points.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

TEST(MountPointsTest, FindsMountsAtAndBelowADirectory) {
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

TEST(MountPointsTest, NamesOptionsThatMakeLocksLocal) {
  const std::string info =
      "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
      "22 21 0:20 / /lustre rw shared:2 master:3 - lustre a@tcp:/b rw,localflock\n"
      "23 22 0:20 / /lustre/all rw - lustre a@tcp:/b rw,flock\n"
      "24 21 0:21 / /nfs rw - nfs4 a:/b rw,vers=4.2,local_lock=none\n"
      "25 21 0:22 / /old rw - nfs a:/b rw,vers=3,nolock,local_lock=all\n"
      "26 21 0:23 / /fuse rw - fuse.bindfs /x rw,allow_other\n"
      "27 21 0:24 / /old rw - ext4 /dev/b rw\n";
  const auto local = [&](const char* directory) { return LocalLocksIn(MountOf(info, directory)); };
  EXPECT_EQ(local("/lustre/runs"), "/lustre is mounted with localflock (lustre)");
  EXPECT_EQ(local("/lustre/all"), "");
  EXPECT_EQ(local("/lustre/alls"), "/lustre is mounted with localflock (lustre)");
  EXPECT_EQ(local("/nfs/a"), "");
  EXPECT_EQ(local("/old/a"), "");  // mounted over
  EXPECT_EQ(LocalLocksIn(MountOf(info.substr(0, info.rfind("27")), "/old/a")),
            "/old is mounted with nolock (nfs)");
  EXPECT_EQ(local("/fuse"), "/fuse is fuse.bindfs, whose options do not say whether locks reach other hosts");
  EXPECT_EQ(LocalLocksIn({.point = "/fuse", .type = "fuse"}),
            "/fuse is fuse, whose options do not say whether locks reach other hosts");
  EXPECT_EQ(local("/home"), "");
  for (const char* odd : {"", "\n", "22 21 0:20 / /", "22 21 0:20 / / rw - ", "22 21 0:20 / / rw - fuse.x"})
    (void)LocalLocksIn(MountOf(odd, "/home"));
}

TEST(MountPointsTest, CombinesMountAndSuperBlockOptions) {
  const Mount mount = MountOf(
      "21 1 8:1 / / rw - ext4 /dev/root rw\n"
      "24 21 0:21 / /nfs\\040a rw,noatime shared:1 - nfs4 a:/b rw,acdirmax=90\n",
      "/nfs a/runs");
  EXPECT_EQ(mount.point, "/nfs a");
  EXPECT_EQ(mount.type, "nfs4");
  EXPECT_EQ(mount.options, (std::vector<std::string>{"rw", "noatime", "rw", "acdirmax=90"}));
  EXPECT_EQ(MountOf("", "/nfs").type, "");
  EXPECT_EQ(MountOf("/proc/self").type, "proc");
}

TEST(MountPointsTest, OnlyAPlainDirectoryHasNoMounts) {
  const TempDir temp;
  std::filesystem::create_directories(temp / "a/b");
  EXPECT_TRUE(CheckNoMount(temp / "a", {"b"}).ok());
  EXPECT_EQ(CheckNoMount("/proc").kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(CheckNoMount(temp / "a", {"../../../../../../../../proc"}).kind(), StatusKind::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
