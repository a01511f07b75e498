#include "tools/doctor/checks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "ckpt/io/page_buffer.h"
#include "tests/support/no_exchange.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wrapped_file_system.h"
#include "tools/doctor/finding.h"

namespace cairn {
namespace {

// A file system that reports success for a call that it has not done.
class LyingFileSystem final : public WrappedFileSystem {
 public:
  explicit LyingFileSystem(FsCall::Kind kind) : WrappedFileSystem(FileSystem::Posix()), kind_(kind) {}

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    if (call.kind != kind_) return run();
    if (call.kind != FsCall::Kind::kWrite) return OkStatus();
    PageBuffer other(call.bytes.size());
    std::memset(other.data(), 1, call.bytes.size());
    return call.file->WriteAt(call.offset, {other.data(), call.bytes.size()});
  }

 private:
  const FsCall::Kind kind_;
};

class FailingSync final : public WrappedFileSystem {
 public:
  using WrappedFileSystem::WrappedFileSystem;

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    return call.kind == FsCall::Kind::kSync ? IoError("fsync {}: Input/output error", call.path) : run();
  }
};

Finding Find(DoctorCheck check, FileSystem& fs, const Mount& mount = {}) {
  const TempDir dir;
  return *check({.fs = fs, .directory = dir.path(), .mount = mount, .probe = dir.path()});
}

TEST(DoctorChecksTest, AFileSystemThatLosesWritesLosesData) {
  LyingFileSystem writes(FsCall::Kind::kWrite), renames(FsCall::Kind::kRename);
  EXPECT_EQ(Find(CheckReadBack, FileSystem::Posix()).severity, Severity::kGood);
  const Finding read_back = Find(CheckReadBack, writes);
  EXPECT_EQ(read_back.severity, Severity::kLosesData) << read_back.found;
  EXPECT_EQ(read_back.found, "the bytes read differ from those written");
  EXPECT_EQ(Find(CheckReplace, FileSystem::Posix()).severity, Severity::kGood);
  EXPECT_EQ(Find(CheckReplace, renames).severity, Severity::kLosesData);
}

TEST(DoctorChecksTest, AFailedFsyncLosesDataAndIsNamedWithoutItsPath) {
  FailingSync fs(FileSystem::Posix());
  const Finding row = Find(CheckFsync, fs);
  EXPECT_EQ(row.severity, Severity::kLosesData);
  EXPECT_EQ(row.found, "fsync synced: Input/output error");
}

TEST(DoctorChecksTest, WithoutExchangeStepsAreStillReplaced) {
  NoExchange fs(FileSystem::Posix());
  const Finding row = Find(CheckExchange, fs);
  EXPECT_EQ(row.severity, Severity::kGood);
  EXPECT_EQ(row.found, "no RENAME_EXCHANGE");
}

TEST(DoctorChecksTest, FindsNameCachesInMountOptions) {
  const auto find = [](const char* type, std::vector<std::string> options) {
    return Find(CheckNameCaches, FileSystem::Posix(),
                {.point = "/nfs", .type = type, .options = std::move(options)});
  };
  EXPECT_EQ(find("ext4", {}).found, "none");
  EXPECT_EQ(find("nfs4", {"rw"}).found, "up to 60 s (acdirmax, acregmax), lookupcache=all");
  EXPECT_EQ(find("nfs4", {"rw"}).severity, Severity::kGood);
  const Finding slow = find("nfs", {"rw", "acdirmin=30", "acdirmax=600", "lookupcache=pos"});
  EXPECT_EQ(slow.found, "up to 600 s (acdirmax, acregmax), lookupcache=pos");
  EXPECT_EQ(slow.severity, Severity::kWarning);
  EXPECT_EQ(find("nfs4", {"rw", "noac"}).meaning, "a new step is seen at once");
  EXPECT_EQ(find("lustre", {}).severity, Severity::kGood);
  EXPECT_EQ(find("fuse.x", {}).found, "the options of fuse.x do not show it");
  EXPECT_EQ(find("fuse.x", {}).severity, Severity::kUnknown);
}

TEST(DoctorChecksTest, WarnsOfLocksThatTheMountKeepsLocal) {
  EXPECT_EQ(Find(CheckLocks, FileSystem::Posix(), {.point = "/", .type = "ext4"}).severity, Severity::kGood);
  const Finding row = Find(CheckLocks, FileSystem::Posix(),
                           {.point = "/scratch", .type = "lustre", .options = {"rw", "localflock"}});
  EXPECT_EQ(row.severity, Severity::kWarning);
  EXPECT_EQ(row.found, "exclude others of this host");
  EXPECT_EQ(row.meaning, "another host may write, too: /scratch is mounted with localflock (lustre)");
}

TEST(DoctorChecksTest, FindingsRoundTripThroughJson) {
  const std::vector<Finding> all = {{.name = "a", .found = "1", .meaning = "m"},
                                    {.name = "b",
                                     .found = "2",
                                     .meaning = "n",
                                     .change = "c",
                                     .severity = Severity::kLosesData,
                                     .measured = true}};
  const Result<std::vector<Finding>> back = FindingsOf(nlohmann::json::parse(ToJson(all).dump()));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(ToJson(*back), ToJson(all));
  EXPECT_FALSE(FindingsOf(nlohmann::json{{{"name", "a"}}}).ok());
}

}  // namespace
}  // namespace cairn
