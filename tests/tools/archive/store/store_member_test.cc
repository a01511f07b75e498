#include "tools/archive/store/store_member.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ckpt/model/layout.h"
#include "ckpt/run/run_dir.h"
#include "tests/support/file_bytes.h"
#include "tests/support/make_step.h"
#include "tests/support/stopping_file_system.h"
#include "tests/support/temp_dir.h"
#include "tools/archive/store/delete.h"
#include "tools/archive/store/restore.h"
#include "tools/archive/store/verify.h"
#include "tools/archive/tar/tar_file_system.h"

namespace cairn {
namespace {

// Does something to the source while it is read: calls `prank` before read number `at`.
class PrankFileSystem final : public ReadOnlyFileSystem {
 public:
  PrankFileSystem(int at, std::function<void()> prank) : left_(at), prank_(std::move(prank)) {}
  Result<std::unique_ptr<File>> OpenForRead(const std::string& path, Direct direct) override {
    if (left_-- == 0) prank_();
    return FileSystem::Posix().OpenForRead(path, direct);
  }
  Result<std::unique_ptr<File>> Create(const std::string& p, Direct d) override {
    return FileSystem::Posix().Create(p, d);
  }
  Result<FileInfo> Stat(const std::string& path) override { return FileSystem::Posix().Stat(path); }
  Result<FileInfo> LinkStat(const std::string& path) override { return FileSystem::Posix().LinkStat(path); }
  Result<std::vector<std::string>> List(const std::string& path) override {
    return FileSystem::Posix().List(path);
  }
  Status Rename(const std::string& a, const std::string& b) override {
    return FileSystem::Posix().Rename(a, b);
  }
  Status RemoveFile(const std::string& path) override { return FileSystem::Posix().RemoveFile(path); }
  Status SyncDir(const std::string& path) override { return FileSystem::Posix().SyncDir(path); }
  Result<uint64_t> FreeBytes(const std::string& path) override { return FileSystem::Posix().FreeBytes(path); }

 private:
  int left_;
  std::function<void()> prank_;
};

// A disk with `room` bytes, on which no file with this ending can be created.
class SmallDisk final : public WrappedFileSystem {
 public:
  SmallDisk(uint64_t free_bytes, std::string refused)
      : WrappedFileSystem(FileSystem::Posix()), free_bytes_(free_bytes), refused_(std::move(refused)) {}
  Result<uint64_t> FreeBytes(const std::string&) override { return free_bytes_; }

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    if (call.kind == FsCall::Kind::kCreate && !refused_.empty() && call.path.ends_with(refused_))
      return NoSpace("{}: no room", call.path);
    return run();
  }

 private:
  const uint64_t free_bytes_;
  const std::string refused_;
};

class ArchiveRunTest : public testing::Test {
 protected:
  ArchiveRunTest() { Make(); }

  void Make() {
    ASSERT_TRUE(MakeStep(FileSystem::Posix(), dir_ / "gpt", RecipeOf({.layers = 1}, {.tp = 2})).ok());
    ASSERT_TRUE(MakeDirs(FileSystem::Posix(), store_.directory()).ok());
  }

  Result<ProvenCopy> Store(FileSystem& fs, const StoreOptions& options = {}) {
    CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(FileSystem::Posix(), source_));
    return StoreStep({fs, store_.directory()}, *step, {}, options);
  }

  std::vector<std::string> StoreFiles() { return store_.List().value(); }

  TempDir dir_;
  const std::string source_ = dir_ / "gpt/step-00000100";
  const cairn::Store store_{FileSystem::Posix(), dir_ / "store"};
};

TEST_F(ArchiveRunTest, StoresOneTarAndItsSidecar) {
  const auto copy = Store(FileSystem::Posix());
  ASSERT_TRUE(copy.ok()) << copy.status().message();
  const std::string tar = TarName(copy->record());
  EXPECT_EQ(StoreFiles(), (std::vector{tar, tar + ".json"}));
  const auto members = ListStore(store_);
  ASSERT_EQ(members->size(), 1u);
  EXPECT_EQ(members->front().run, "gpt");
  EXPECT_EQ(members->front().step, 100);
  EXPECT_EQ(members->front().state, MemberState::kVerified);
  EXPECT_EQ(members->front().record->tokens, 102400);
  EXPECT_TRUE(VerifyMember(store_, members->front()).problems.empty());
}

TEST_F(ArchiveRunTest, TheSameStepGivesTheSameTar) {
  ASSERT_TRUE(Store(FileSystem::Posix()).ok());
  const auto first = ReadSmallFile(FileSystem::Posix(), store_.Path(StoreFiles().front()), 1 << 30);
  ASSERT_TRUE(Store(FileSystem::Posix()).ok());
  EXPECT_EQ(*first, *ReadSmallFile(FileSystem::Posix(), store_.Path(StoreFiles().front()), 1 << 30));
}

TEST_F(ArchiveRunTest, AnArchivedStepIsReadInPlace) {
  const auto copy = Store(FileSystem::Posix());
  const std::string tar = store_.Path(TarName(copy->record()));
  const auto view = TarFileSystem::Open(FileSystem::Posix(), PlaceOfTar(tar), /*past_cache=*/true);
  ASSERT_TRUE(view.ok()) << view.status().message();
  const std::vector<std::string> names = *FileSystem::Posix().List(source_);
  for (const std::string& name : names)
    EXPECT_EQ(*ReadSmallFile(**view, JoinPath(tar, name), 1 << 30),
              *ReadSmallFile(FileSystem::Posix(), JoinPath(source_, name), 1 << 30));
  EXPECT_EQ((*view)->OpenForRead(JoinPath(tar, "../x"), Direct::kOff).status().kind(), StatusKind::kNotFound);
}

TEST_F(ArchiveRunTest, DetectsEveryFlippedByteOfATar) {
  const auto copy = Store(FileSystem::Posix());
  const auto member = ListStore(store_)->front();
  const std::string tar = store_.Path(member.tar);
  for (uint64_t at = 0; at < member.record->tar_bytes - 4096; at += 29989) {
    FlipByte(tar, at);
    const VerifyReport report = VerifyMember(store_, member);
    FlipByte(tar, at);
    // The padding of a file to whole blocks is not data.
    if (report.problems.empty()) {
      const auto index = ReadTarIndex(FileSystem::Posix(), PlaceOfTar(tar));
      for (const ArchivedFile& file : index->files)
        EXPECT_FALSE(at >= file.offset && at < file.offset + file.stored_bytes)
            << file.name << " at byte " << at;
    }
  }
}

TEST_F(ArchiveRunTest, ADamagedSourceIsNotStored) {
  FlipByte(source_ + "/shard-00001.h5", 5000);
  EXPECT_EQ(Store(FileSystem::Posix()).status().kind(), StatusKind::kCorrupt);
  EXPECT_TRUE(StoreFiles().empty());
}

TEST_F(ArchiveRunTest, WithoutItsParityOrSidecarATarIsNotStored) {
  for (const char* refused : {".tar.parity.partial", ".tar.json.partial"}) {
    SmallDisk fs(uint64_t{1} << 40, refused);
    EXPECT_EQ(Store(fs, {.parity = 0.1}).status().kind(), StatusKind::kNoSpace) << refused;
    EXPECT_TRUE(StoreFiles().empty()) << refused << ": " << StoreFiles().front();
  }
}

TEST_F(ArchiveRunTest, TheSpaceCheckIncludesParity) {
  const auto step = StepReader::Open(FileSystem::Posix(), source_);
  SmallDisk fs(TarBytesAtMost((*step)->manifest()), "");
  EXPECT_EQ(Store(fs, {.parity = 0.1}).status().kind(), StatusKind::kNoSpace);
  EXPECT_TRUE(StoreFiles().empty());
  ASSERT_TRUE(Store(fs).ok());
}

TEST_F(ArchiveRunTest, ASourceThatChangesWhileItIsReadIsNotStored) {
  for (int at = 0; at < 3; ++at) {
    PrankFileSystem fs(at, [&] { FlipByte(source_ + "/index.h5", 100); });
    const auto copy = Store(fs);
    EXPECT_EQ(copy.status().kind(), StatusKind::kCorrupt) << at;
    EXPECT_TRUE(StoreFiles().empty());
    FlipByte(source_ + "/index.h5", 100);
  }
}

TEST_F(ArchiveRunTest, ASourceRewrittenAfterItWasReadIsNotStored) {
  PrankFileSystem fs(2, [&] {  // shard 0 has been read; its bytes are as before, its time is not
    std::filesystem::last_write_time(source_ + "/shard-00000.h5",
                                     std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  });
  const auto copy = Store(fs);
  EXPECT_NE(copy.status().message().find("changed while they were read"), std::string::npos)
      << copy.status().message();
  EXPECT_TRUE(StoreFiles().empty());
}

TEST_F(ArchiveRunTest, ASourceThatVanishesWhileItIsReadIsNotStored) {
  PrankFileSystem fs(1, [&] { std::filesystem::remove_all(source_); });
  EXPECT_EQ(Store(fs).status().kind(), StatusKind::kNotFound);
  EXPECT_TRUE(StoreFiles().empty());
}

TEST_F(ArchiveRunTest, RemovesASourceOnlyIfNothingElseIsLost) {
  const auto copy = Store(FileSystem::Posix());
  std::ofstream(source_ + "/notes.txt") << "mine";
  EXPECT_EQ(DeleteSource(store_, source_, *copy, true).kind(), StatusKind::kInvalidArgument);
  std::filesystem::remove(source_ + "/notes.txt");
  EXPECT_EQ(DeleteSource({FileSystem::Posix(), source_}, source_, *copy).kind(),
            StatusKind::kInvalidArgument);
  {
    const auto training = RunLock::Take(FileSystem::Posix(), dir_ / "gpt");
    EXPECT_EQ(DeleteSource(store_, source_, *copy).kind(), StatusKind::kInvalidArgument);
  }
  EXPECT_EQ(DeleteSource(store_, source_, *copy).kind(),
            StatusKind::kInvalidArgument);  // the newest
  {
    std::filesystem::rename(source_, dir_ / "elsewhere");
    std::filesystem::create_directory_symlink(dir_ / "elsewhere", source_);
    EXPECT_EQ(DeleteSource(store_, source_, *copy, true).kind(), StatusKind::kInvalidArgument);
    std::filesystem::remove(source_);
    std::filesystem::rename(dir_ / "elsewhere", source_);
  }
  const std::string tar = store_.Path(TarName(copy->record()));
  std::filesystem::rename(tar, dir_ / "tar");
  EXPECT_FALSE(DeleteSource(store_, source_, *copy, true).ok());  // the proof no longer exists
  std::filesystem::rename(dir_ / "tar", tar);
  EXPECT_TRUE(DeleteSource(store_, source_, *copy, true).ok());
  EXPECT_FALSE(std::filesystem::exists(source_));
}

TEST_F(ArchiveRunTest, AStepThatWasSavedAgainIsNotDeletedForItsOldCopy) {
  const auto copy = Store(FileSystem::Posix());
  std::filesystem::remove_all(source_);
  StepRecipe recipe = RecipeOf({.layers = 1}, {.tp = 2});
  recipe.seed = 2;
  ASSERT_TRUE(MakeStep(FileSystem::Posix(), dir_ / "gpt", recipe).ok());
  EXPECT_EQ(DeleteSource(store_, source_, *copy).kind(), StatusKind::kCorrupt);
  EXPECT_TRUE(StepReader::Open(FileSystem::Posix(), source_).ok());
}

// Stops after every change in turn: a whole copy always exists, and the next run finishes.
TEST_F(ArchiveRunTest, AStopAtAnyOperationLosesNoCopy) {
  const auto archive = [&](FileSystem& fs) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(fs, source_));
    CAIRN_ASSIGN_OR_RETURN(const ProvenCopy copy, StoreStep({fs, store_.directory()}, *step, {}));
    return DeleteSource({fs, store_.directory()}, source_, copy, /*newest_too=*/true);
  };
  bool done = false;
  for (int changes = 0; !done; ++changes) {
    StoppingFileSystem stopping(changes);
    done = archive(stopping).ok();
    const auto source = StepReader::Open(FileSystem::Posix(), source_);
    const bool source_whole = source.ok() && VerifyHash(FileSystem::Posix(), **source).problems.empty();
    const auto members = *ListStore(store_);
    const bool copy_proven = members.size() == 1 && members[0].state == MemberState::kVerified &&
                             VerifyMember(store_, members[0]).problems.empty();
    ASSERT_TRUE(source_whole || copy_proven) << "after change " << changes;
    if (!source_whole) {
      std::filesystem::remove_all(dir_ / "gpt");
      Make();
    }
    ASSERT_TRUE(Store(FileSystem::Posix()).ok()) << "after change " << changes;
    std::filesystem::remove_all(store_.directory());
    ASSERT_TRUE(MakeDirs(FileSystem::Posix(), store_.directory()).ok());
  }
}

TEST_F(ArchiveRunTest, AFailedRestoreLeavesNothing) {
  const auto copy = Store(FileSystem::Posix());
  const std::string tar = TarName(copy->record());
  const std::string destination = dir_ / "back/step-00000100";
  for (int changes = 0;; ++changes) {
    StoppingFileSystem stopping(changes);
    if (RestoreTar({{stopping, store_.directory()}, tar}, destination, {}).ok()) break;
    if (const auto step = StepReader::Open(FileSystem::Posix(), destination);
        step.ok())  // only its name was not synced
      EXPECT_TRUE(VerifyHash(FileSystem::Posix(), **step).problems.empty()) << changes;
    else
      EXPECT_FALSE(std::filesystem::exists(destination)) << changes;
    std::filesystem::remove_all(dir_ / "back");  // a dead disk cannot be cleaned up
  }
  EXPECT_EQ(RestoreTar({store_, tar}, destination, {}).kind(), StatusKind::kAlreadyExists);
  EXPECT_EQ(RestoreTar({store_, tar}, dir_ / "back/step-00000007", {}).kind(), StatusKind::kInvalidArgument);
  StepRecipe another = RecipeOf({.layers = 1}, {});
  another.step = 7, another.run = "another", another.origin = {3, "another"};
  ASSERT_TRUE(MakeStep(FileSystem::Posix(), dir_ / "another", another).ok());
  EXPECT_EQ(RestoreTar({store_, tar}, dir_ / "another/step-00000100", {}).kind(),
            StatusKind::kInvalidArgument);
  FlipByte(store_.Path(tar), 100000);
  EXPECT_EQ(RestoreTar({store_, tar}, dir_ / "new/x", {}).kind(), StatusKind::kCorrupt);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "new"));
}

}  // namespace
}  // namespace cairn
