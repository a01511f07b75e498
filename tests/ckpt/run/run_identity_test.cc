// A rename keeps a run's identity, a copy never does.
#include "ckpt/run/run_identity.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ckpt/base/canonical_path.h"
#include "ckpt/io/directory_facts.h"
#include "ckpt/model/layout.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

class RunIdentityTest : public testing::Test {
 protected:
  std::string Make(const std::string& name) {
    stdfs::create_directory(dir_ / name);
    return dir_ / name;
  }
  std::string Own(const std::string& path) {
    const auto owned = OwnRun(fs_, path);
    EXPECT_TRUE(owned.ok()) << owned.status().message();
    return owned.ok() ? owned->run : "";
  }
  Ownership OwnershipOf(const std::string& path) {
    const auto identity = IdentifyRun(fs_, path);
    EXPECT_TRUE(identity.ok()) << identity.status().message();
    return identity.ok() ? identity->ownership : Ownership::kNone;
  }
  void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

  TempDir dir_;
  FileSystem& fs_ = FileSystem::Posix();
};

TEST_F(RunIdentityTest, ANewDirectoryGetsAPermanentIdentity) {
  const std::string a = Make("a");
  EXPECT_EQ(OwnershipOf(a), Ownership::kNone);
  const std::string run = Own(a);
  EXPECT_TRUE(IsRunId(run));
  EXPECT_EQ(OwnershipOf(a), Ownership::kOwned);
  EXPECT_EQ(Own(a), run);
  EXPECT_NE(Own(Make("b")), run);
}

TEST_F(RunIdentityTest, ARenamedDirectoryKeepsItsIdentity) {
  const std::string run = Own(Make("a"));
  stdfs::rename(dir_ / "a", dir_ / "b");
  EXPECT_EQ(OwnershipOf(dir_ / "b"), Ownership::kRenamed);
  EXPECT_EQ(Own(dir_ / "b"), run);
  EXPECT_EQ(OwnershipOf(dir_ / "b"), Ownership::kOwned);
  // Also if another run has taken the old name.
  Own(Make("a"));
  stdfs::rename(dir_ / "b", dir_ / "c");
  EXPECT_EQ(Own(dir_ / "c"), run);
}

TEST_F(RunIdentityTest, ACopyGetsAnotherIdentityWhenItIsWritten) {
  const std::string run = Own(Make("a"));
  stdfs::copy(dir_ / "a", dir_ / "b", stdfs::copy_options::recursive);
  EXPECT_EQ(OwnershipOf(dir_ / "b"), Ownership::kCopied);
  EXPECT_EQ(IdentifyRun(fs_, dir_ / "b")->owner, CanonicalPath(dir_ / "a"));
  const std::string copy = Own(dir_ / "b");
  EXPECT_NE(copy, run);
  EXPECT_EQ(Own(dir_ / "b"), copy);
  EXPECT_EQ(Own(dir_ / "a"), run);
}

TEST_F(RunIdentityTest, ACopyIsDetectedUnderTheNameOfItsOriginal) {
  const std::string run = Own(Make("a"));
  stdfs::copy(dir_ / "a", dir_ / "b", stdfs::copy_options::recursive);
  stdfs::rename(dir_ / "a", dir_ / "old");
  stdfs::rename(dir_ / "b", dir_ / "a");
  EXPECT_EQ(OwnershipOf(dir_ / "a"), Ownership::kCopied);
  EXPECT_EQ(OwnershipOf(dir_ / "old"), Ownership::kRenamed);
  EXPECT_NE(Own(dir_ / "a"), run);
  EXPECT_EQ(Own(dir_ / "old"), run);
}

// The kind: a place that keeps inodes and birth times, and is a copy all the same: a snapshot, a clone of a
// volume, a copied image, a disk that a machine was cloned with. Each is mounted elsewhere, so its file names
// the old path and fits the directory that it lies in.
TEST_F(RunIdentityTest, ACloneOfAFileSystemIsAnotherRunAsLongAsTheOldPathHasTheRun) {
  const std::string a = Make("a"), clone = Make("clone"), run = Own(a);
  const DirectoryFacts facts = FactsOfDirectory(clone).value();
  const auto clone_it = [&] {
    Write(JoinPath(clone, kRunName),
          fmt::format(R"({{"run": "{}", "directory": "{}", "inode": {}, "born_unix_nanoseconds": {}}})", run,
                      CanonicalPath(a), facts.inode, facts.born_unix_nanoseconds));
  };
  clone_it();
  EXPECT_EQ(OwnershipOf(clone), Ownership::kCopied);
  EXPECT_NE(Own(clone), run);
  EXPECT_EQ(Own(a), run);
  // The original is not mounted, or another run has its path: the volume was moved.
  clone_it();
  stdfs::rename(a, dir_ / "gone");
  EXPECT_EQ(OwnershipOf(clone), Ownership::kRenamed);
  Own(Make("a"));
  EXPECT_EQ(Own(clone), run);
}

TEST_F(RunIdentityTest, AnIdentityWithoutAnOwnerIsIgnored) {
  const std::string a = Make("a"), run(32, 'a');
  Write(JoinPath(a, kRunName), run + "\n");
  EXPECT_EQ(OwnershipOf(a), Ownership::kNone);
  EXPECT_NE(Own(a), run);
}

TEST_F(RunIdentityTest, AMalformedIdentityIsAnError) {
  const std::string a = Make("a");
  for (const char* text :
       {"", "{}", "[1]", "0123\n", "{\"run\": \"x\", \"directory\": \"/a\", \"inode\": 1}",
        "{\"run\": 3, \"directory\": \"/a\", \"inode\": -1, \"born_unix_nanoseconds\": 0}"}) {
    Write(JoinPath(a, kRunName), text);
    EXPECT_EQ(IdentifyRun(fs_, a).status().kind(), StatusKind::kCorrupt) << text;
    EXPECT_EQ(OwnRun(fs_, a).status().kind(), StatusKind::kCorrupt) << text;
  }
}

TEST_F(RunIdentityTest, ALinkToTheDirectoryHasItsIdentity) {
  const std::string run = Own(Make("a"));
  stdfs::create_directory_symlink(dir_ / "a", dir_ / "link");
  EXPECT_EQ(OwnershipOf(dir_ / "link"), Ownership::kOwned);
  EXPECT_EQ(Own(dir_ / "link"), run);
}

}  // namespace
}  // namespace cairn
