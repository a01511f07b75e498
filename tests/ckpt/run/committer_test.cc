#include "ckpt/run/committer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ckpt/base/canonical_path.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"
#include "tests/support/unsynced_file_system.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

class CommitterTest : public testing::Test {
 protected:
  static bool Exists(const std::string& path) { return stdfs::exists(path); }
  static void Touch(const std::string& path) { std::ofstream(path) << "x"; }
  Result<Committer> Create(bool resume = false, uint64_t need_bytes = 0) {
    return Committer::Create(
        fs_,
        {.run_dir = run_, .commit = {7, "run"}, .nonce = "ab12", .need_bytes = need_bytes, .resume = resume});
  }
  // A save that another process left behind.
  std::string LeavePartial(const std::string& nonce) const {
    const std::string partial = JoinPath(run_, PartialDirName(7, nonce));
    stdfs::create_directories(partial);
    for (const char* name : {"shard-00000.h5", "index.h5", "manifest.json"}) Touch(JoinPath(partial, name));
    EXPECT_TRUE(MakeMarkedDir(FileSystem::Posix(), partial, {.step = true}).ok());
    return partial;
  }

  FileSystem& fs_ = FileSystem::Posix();
  const TempDir dir_{TempDir::Place::kMemory};
  const std::string run_ = dir_ / "deep/run";
};

TEST_F(CommitterTest, AnAbandonedSaveRemovesItsDirectories) {
  {
    const auto committer = Create();
    ASSERT_TRUE(committer.ok()) << committer.status().message();
    EXPECT_TRUE(Exists(committer->partial()));
    EXPECT_EQ(RunLock::Take(FileSystem::Posix(), run_).status().kind(), StatusKind::kAlreadyExists);
  }
  EXPECT_FALSE(Exists(dir_ / "deep"));
}

// Several processes make the directory of a save. On a full disk one takes away the mark that it could not
// write, after another has found it.
TEST_F(CommitterTest, AnAbandonedSaveIsRemovedEvenIfItsMarkIsMissing) {
  const std::string partial = LeavePartial("ab12");
  Touch(JoinPath(partial, "tokenizer.json"));
  stdfs::remove(MarkPath(partial));
  Committer(fs_, run_, 7, "ab12").Abandon({"tokenizer.json"});
  EXPECT_EQ(stdfs::directory_iterator(run_), stdfs::directory_iterator());
}

TEST_F(CommitterTest, ResumesAfterAKillBetweenMarkAndDirectory) {
  stdfs::create_directories(run_);
  const std::string partial = JoinPath(run_, PartialDirName(7, "ab12"));
  for (const bool whole : {false, true}) {
    const Status marked =
        whole ? WriteMark(fs_, partial, {.step = true}) : WriteSmallFile(fs_, MarkPath(partial), "");
    ASSERT_TRUE(marked.ok()) << marked.message();
    const auto committer = Create(/*resume=*/true);
    ASSERT_TRUE(committer.ok()) << committer.status().message();
    EXPECT_TRUE(Exists(partial));
  }
}

// Another command may have put a step there: restored, moved, copied.
TEST_F(CommitterTest, FilesOfOthersInANewRunStay) {
  {
    const auto committer = Create();
    ASSERT_TRUE(committer.ok());
    ASSERT_TRUE(MakeStep(fs_, run_, {.step = 2}).ok());
    Touch(JoinPath(run_, "notes.txt"));
    Touch(JoinPath(committer->partial(), "shard-00000.h5"));
  }
  EXPECT_TRUE(Exists(JoinPath(run_, StepDirName(2)) + "/manifest.json") &&
              Exists(JoinPath(run_, "notes.txt")));
  for (const auto& entry : stdfs::directory_iterator(run_))
    EXPECT_EQ(entry.path().string().find(".partial-"), std::string::npos) << entry.path();
  EXPECT_FALSE(Exists(MarkPath(run_)));
}

TEST_F(CommitterTest, AStepThatAppearedDuringTheSaveIsNotReplaced) {
  auto committer = Create();
  ASSERT_TRUE(committer.ok());
  stdfs::create_directory(committer->step_dir());
  EXPECT_EQ(committer->Publish().kind(), StatusKind::kAlreadyExists);
  EXPECT_TRUE(stdfs::is_empty(committer->step_dir()));
}

// It shows people where the run is, and the run has continued.
TEST_F(CommitterTest, AddingAnOlderStepKeepsLatest) {
  ASSERT_TRUE(MakeStep(fs_, run_, {.step = 10}).ok());
  auto committer = Create();
  ASSERT_TRUE(committer.ok() && committer->Publish().ok());
  EXPECT_EQ(ReadSmallFile(fs_, JoinPath(run_, "latest"), 100).value(), StepDirName(10) + "\n");
}

TEST_F(CommitterTest, PublishedStepStaysAndIsNeverOverwritten) {
  {
    auto committer = Create();
    ASSERT_TRUE(committer.ok());
    ASSERT_TRUE(committer->Publish().ok());
  }
  EXPECT_TRUE(Exists(JoinPath(run_, StepDirName(7))));
  EXPECT_TRUE(Exists(JoinPath(run_, "latest")));
  EXPECT_EQ(Create().status().kind(), StatusKind::kAlreadyExists);
}

TEST_F(CommitterTest, CreateRemovesLeftoversAndChecksSpaceAndPlace) {
  const std::string leftover = LeavePartial("cd34");
  EXPECT_EQ(Create(/*resume=*/false, UINT64_MAX).status().kind(), StatusKind::kNoSpace);
  EXPECT_FALSE(Exists(leftover));  // removing it may have freed enough space
  ASSERT_TRUE(Create().ok());
  ASSERT_TRUE(MakeStep(fs_, run_, {.step = 10}).ok());
  const auto inside =
      Committer::Create(fs_, {.run_dir = JoinPath(run_, StepDirName(10)), .commit = {1, "run"}});
  EXPECT_EQ(inside.status().kind(), StatusKind::kInvalidArgument);
}

TEST_F(CommitterTest, ResumedStepKeepsItsShardsAndDropsItsSeal) {
  const std::string partial = LeavePartial("ab12"), other = LeavePartial("cd34");
  {
    auto committer = Create(/*resume=*/true, UINT64_MAX);  // the space is taken already
    ASSERT_TRUE(committer.ok()) << committer.status().message();
    committer->Keep();
  }
  EXPECT_TRUE(Exists(partial + "/shard-00000.h5") && Exists(other));
  EXPECT_FALSE(Exists(partial + "/index.h5") || Exists(partial + "/manifest.json"));
  ASSERT_TRUE(Create(/*resume=*/true).ok());
  EXPECT_FALSE(Exists(partial) || Exists(MarkPath(partial)));
}

TEST_F(CommitterTest, DoesNotPublishIntoAReplacedRunDirectory) {
  auto committer = Create();
  ASSERT_TRUE(committer.ok());
  stdfs::rename(run_, run_ + ".moved");
  stdfs::create_directories(committer->partial());
  Touch(JoinPath(run_, ".lock"));
  EXPECT_EQ(committer->Publish().kind(), StatusKind::kAlreadyExists);
  EXPECT_FALSE(Exists(committer->step_dir()));
}

// As with Lustre's localflock, or NFS's nolock: each host has its own lock.
TEST_F(CommitterTest, DoesNotPublishIfAnotherHostHoldsTheLockToo) {
  auto committer = Create();
  ASSERT_TRUE(committer.ok());
  const LockHolder other{.host = "n3", .pid = 71, .since = "then", .word = "abc"};
  std::ofstream(JoinPath(run_, ".lock")) << EncodeLockHolder(other);
  const Status published = committer->Publish();
  EXPECT_EQ(published.kind(), StatusKind::kAlreadyExists);
  EXPECT_NE(published.message().find("pid 71 on n3 since then"), std::string::npos) << published.message();
  EXPECT_FALSE(Exists(committer->step_dir()));
}

// Keeps the calls that make, remove, name or sync something.
class Recorder final : public UnsyncedFileSystem {
 public:
  std::vector<std::string> calls;

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    const std::string name(LastName(call.path));
    if (call.kind == FsCall::Kind::kCreate) calls.push_back("create " + name);
    if (call.kind == FsCall::Kind::kRemoveFile) calls.push_back("remove " + name);
    if (call.kind == FsCall::Kind::kSyncDir) calls.push_back("sync " + name);
    if (call.kind == FsCall::Kind::kRename) calls.push_back("rename to " + std::string(LastName(*call.to)));
    return UnsyncedFileSystem::Do(call, run);
  }
};

TEST_F(CommitterTest, CommitKeepsTheOrderOfTheHeader) {
  stdfs::create_directories(run_);
  Recorder fs;
  Committer committer(fs, run_, 7, "ab12");
  ASSERT_TRUE(committer.MakePartial({"tokenizer.json"}).ok());
  Touch(JoinPath(committer.partial(), "team-ended-00001"));
  Result<StepSeal> seal = SealCatalog({.identity = {"run", 7}}, {}, {});
  ASSERT_TRUE(seal.ok()) << seal.status().message();
  const std::vector<BesideFile> beside = {{"tokenizer.json", "{}"}};
  fs.calls.clear();
  const Status committed = committer.Commit(
      *seal, {.scratch = [](auto name) { return name.starts_with("team-"); }, .beside = beside});
  ASSERT_TRUE(committed.ok()) << committed.message();
  EXPECT_EQ(DecodeManifest(seal->manifest)->files.back().name, "tokenizer.json");
  ASSERT_GE(fs.calls.size(), 8U);
  fs.calls.resize(8);
  EXPECT_EQ(fs.calls, (std::vector<std::string>{"remove team-ended-00001", "remove tokenizer.json",
                                                "create tokenizer.json", "create index.h5",
                                                "create manifest.json", "sync step-00000007.partial-ab12",
                                                "rename to step-00000007", "sync run"}));
}

}  // namespace
}  // namespace cairn
