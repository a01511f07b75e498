#include "tools/archive/tar/tar_pieces.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "ckpt/model/layout.h"
#include "tests/support/file_bytes.h"
#include "tests/support/make_step.h"
#include "tests/support/stopping_file_system.h"
#include "tests/support/temp_dir.h"
#include "tools/archive/bundle/bundle_plan.h"
#include "tools/archive/bundle/scrub.h"
#include "tools/archive/store/archiver.h"
#include "tools/archive/store/ledger.h"
#include "tools/archive/store/leftovers.h"
#include "tools/archive/store/rebuild.h"
#include "tools/archive/store/restore.h"
#include "tools/archive/tar/tar_writer.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

// Exit status of a shell command.
int Shell(const std::string& command) { return std::system((command + " > /dev/null").c_str()); }

// A step of four shards and a tree, and a store for them.
class TarPiecesTest : public testing::Test {
 protected:
  TarPiecesTest() {
    EXPECT_TRUE(MakeStep(FileSystem::Posix(), dir_ / "gpt", RecipeOf({.layers = 1}, {.tp = 4})).ok());
    EXPECT_TRUE(MakeDirs(FileSystem::Posix(), store_.directory()).ok());
    EXPECT_TRUE(MakeDirs(FileSystem::Posix(), dir_ / "notes/deep").ok());
    for (const char* name : {"a.txt", "deep/b.txt", "deep/empty", "z.txt"})
      std::ofstream(dir_ / ("notes/" + std::string(name)))
          << std::string(std::string_view(name).ends_with("y") ? 0 : 70000, name[0]);
  }

  // One file per entry by default.
  Status Store(FileSystem& fs, StoreOptions options = {.max_tar_bytes = 1}) {
    CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(FileSystem::Posix(), source_));
    return StoreStep({fs, store_.directory()}, *step, {}, options).status();
  }
  ArchiveMember Member(const std::string& selector = "gpt") {
    const auto member = FindMember(store_, selector);
    EXPECT_TRUE(member.ok()) << member.status().message();
    return member.ok() ? *member : ArchiveMember{};
  }
  std::vector<ArchiveMember> Members() { return ListStore(store_).value(); }
  std::vector<std::string> FilesIn() { return store_.List().value(); }
  std::vector<std::string> Paths() { return FilesOf(store_.Place(*Member().record)); }
  // The problems of the step, in one text.
  std::string Trouble() {
    std::string text;
    for (const Problem& problem : VerifyMember(store_, Member()).problems) text += ToString(problem) + "\n";
    return text;
  }
  void ExpectRestores() {
    const std::string back = dir_ / "back/step-00000100";
    const Status restored = RestoreTar({store_, Member().tar}, back, {});
    ASSERT_TRUE(restored.ok()) << restored.message();
    EXPECT_EQ(Shell(fmt::format("diff -r '{}' '{}'", source_, back)), 0);
    stdfs::remove_all(dir_ / "back");
  }

  TempDir dir_{TempDir::Place::kMemory};
  const std::string source_ = dir_ / "gpt/step-00000100";
  const cairn::Store store_{FileSystem::Posix(), dir_ / "store"};
};

TEST(TarPieceNameTest, RoundTrips) {
  const std::string tar = "gpt-step-00000010.aaaaaaaa.tar";
  EXPECT_EQ(TarPieceName(tar, 1), tar);
  EXPECT_EQ(TarPieceName(tar + ".partial", 12), tar + ".12.partial");
  EXPECT_EQ(ParseTarPieceName(tar + ".12")->tar, tar);
  EXPECT_EQ(ParseTarPieceName(tar + ".12")->number, 12u);
  for (const char* end :
       {"", ".", ".0", ".1", ".02", ".x", ".2x", ".-2", ".99999999999999999999", ".json", ".2.partial"})
    EXPECT_FALSE(ParseTarPieceName(tar + end)) << end;
  EXPECT_FALSE(ParseTarPieceName("gpt-bundle-00000010-00000020.aaaaaaaa.tar.2"));  // those are of one file
}

TEST_F(TarPiecesTest, GnuTarReadsEveryPiece) {
  ASSERT_TRUE(Store(FileSystem::Posix()).ok());
  const ArchiveRecord record = *Member().record;
  EXPECT_EQ(record.pieces.size(), record.files.size() + 1);  // and SHA256SUMS
  EXPECT_EQ(FilesIn().size(), record.pieces.size() + 1);
  std::string all;
  for (const std::string& path : Paths()) {
    EXPECT_EQ(Shell(fmt::format("tar -xf '{}' -C '{}' 2>&1", path, dir_ / "store")), 0) << path;
    EXPECT_EQ(stdfs::file_size(path) % kPageBytes, 0u);
    all += BytesOf(path);
  }
  const std::string out = dir_ / "store/gpt/step-00000100";
  EXPECT_EQ(Shell(fmt::format("cd '{}' && sha256sum -c SHA256SUMS", out)), 0);
  stdfs::remove_all(dir_ / "store/gpt");
  for (const ArchivedFile& file : record.files)
    EXPECT_TRUE(all.substr(file.offset, file.bytes) == BytesOf(JoinPath(source_, file.name))) << file.name;
  std::ofstream(dir_ / "all.tar", std::ios::binary) << all;
  ASSERT_EQ(Shell(fmt::format("tar -xif '{}' -C '{}'", dir_ / "all.tar", store_.directory())), 0);
  EXPECT_EQ(Shell(fmt::format("cd '{}' && sha256sum -c SHA256SUMS", out)), 0);
}

TEST_F(TarPiecesTest, AReadPastTheEndNamesItsOffsetInTheTar) {
  ASSERT_TRUE(Store(FileSystem::Posix()).ok());
  const ArchiveRecord record = *Member().record;
  const auto tar = OpenTar(FileSystem::Posix(), store_.Place(record),
                           /*past_cache=*/false);
  std::vector<std::byte> bytes(20);
  const Status read = (*tar)->ReadAt(record.tar_bytes - 10, bytes);
  EXPECT_EQ(read.kind(), StatusKind::kCorrupt);
  EXPECT_TRUE(read.message().ends_with(fmt::format(": ends before byte {}", record.tar_bytes + 10)))
      << read.message();
}

TEST_F(TarPiecesTest, AnyPieceSizeRestoresTheSameStep) {
  std::mt19937 random(1);
  for (int i = 0; i < 12; ++i) {
    const StoreOptions options{.pack = i % 2 == 1, .max_tar_bytes = 1 + random() % 600'000};
    ASSERT_TRUE(Store(FileSystem::Posix(), options).ok());
    const ArchiveRecord record = *Member().record;
    uint64_t begin = 0;
    for (const uint64_t bytes : record.pieces) {  // larger only if it has a single entry
      const auto entries = std::ranges::count_if(record.files, [&](const ArchivedFile& file) {
        return file.offset >= begin && file.offset - begin < bytes;
      });
      EXPECT_TRUE(bytes <= options.max_tar_bytes || entries <= 1) << bytes << " of " << options.max_tar_bytes;
      begin += bytes;
    }
    EXPECT_EQ(Trouble(), "");
    ExpectRestores();
    ASSERT_TRUE(FileSystem::Posix().RemoveFile(Paths()[0] + ".json").ok());
    ASSERT_TRUE(RebuildRecord({store_, Member().tar}, {}).ok());
    EXPECT_EQ(Member().record->pieces, record.pieces);
    EXPECT_EQ(Member().record->files, record.files);
    const size_t parts = std::max<size_t>(1, record.pieces.size());
    EXPECT_EQ(FilesIn().size(), parts + 1);  // no file of another limit is left
  }
}

TEST_F(TarPiecesTest, ATreeCanBeStoredInPieces) {
  ASSERT_TRUE(StoreTree(store_, dir_ / "notes", {}, {.max_tar_bytes = 150'000}).ok());
  const ArchiveMember notes = Member("notes");
  EXPECT_EQ(notes.record->pieces.size(), 2u);
  EXPECT_EQ(CountTarPieces({70000, 70000, 0, 70000}, 150'000), 2u);
  ASSERT_TRUE(RestoreTar({store_, notes.tar}, dir_ / "again", {}).ok());
  EXPECT_EQ(Shell(fmt::format("diff -r '{}' '{}'", dir_ / "notes", dir_ / "again")), 0);
}

TEST_F(TarPiecesTest, NamesMissingTruncatedAndSwappedPieces) {
  ASSERT_TRUE(Store(FileSystem::Posix()).ok());
  const std::vector<std::string> paths = Paths();
  for (const std::string& path : paths) {
    stdfs::rename(path, dir_ / "aside");
    EXPECT_EQ(Member().state, MemberState::kDamaged);
    EXPECT_NE(Trouble().find(path + " is missing"), std::string::npos) << Trouble();
    EXPECT_FALSE(RestoreTar({store_, Member().tar}, dir_ / "back/x", {}).ok());
    stdfs::copy(dir_ / "aside", path);
    stdfs::resize_file(path, stdfs::file_size(path) - 512);
    EXPECT_EQ(Member().state, MemberState::kDamaged);
    EXPECT_NE(Trouble().find(path + " has "), std::string::npos) << Trouble();
    stdfs::remove(path);
    stdfs::rename(dir_ / "aside", path);
    EXPECT_EQ(Trouble(), "");
  }
  // Two of equal size differ only in their entries.
  ASSERT_TRUE(StoreTree(store_, dir_ / "notes", {}, {.max_tar_bytes = 1}).ok());
  const ArchiveMember notes = Member("notes");
  const std::vector<std::string> files = FilesOf(store_.Place(*notes.record));
  ASSERT_EQ(stdfs::file_size(files[0]), stdfs::file_size(files[1]));
  ASSERT_TRUE(FileSystem::Posix().Exchange(files[0], files[1]).ok());
  const VerifyReport report = VerifyMember(store_, notes);
  ASSERT_FALSE(report.problems.empty());
  EXPECT_NE(ToString(report.problems[0]).find("swapped"), std::string::npos) << ToString(report.problems[0]);
  EXPECT_FALSE(RestoreTar({store_, notes.tar}, dir_ / "again", {}).ok());
  EXPECT_FALSE(stdfs::exists(dir_ / "again"));
}

TEST_F(TarPiecesTest, DamageIsNamedByFileAndNeverRestored) {
  ASSERT_TRUE(Store(FileSystem::Posix()).ok());
  const std::vector<std::string> paths = Paths();
  for (const std::string& path : paths) {
    for (const uint64_t at : {uint64_t{3}, uint64_t{600}}) {  // a name in a header; the data
      FlipByte(path, at);
      EXPECT_NE(Trouble(), "") << path << " at " << at;
      if (at == 600 && path != paths.back()) {
        EXPECT_NE(Trouble().find(path), std::string::npos) << Trouble();
        EXPECT_FALSE(RestoreTar({store_, Member().tar}, dir_ / "back/x", {}).ok()) << path;
      }
      FlipByte(path, at);
    }
  }
  EXPECT_EQ(Trouble(), "");
}

TEST_F(TarPiecesTest, WithoutASidecarAMissingPieceIsNamed) {
  ASSERT_TRUE(Store(FileSystem::Posix()).ok());
  const std::vector<std::string> paths = Paths();
  const std::string tar = Member().tar;
  stdfs::remove(paths[0] + ".json");
  EXPECT_EQ(Member().state, MemberState::kStored);
  for (const std::string& path : paths) {
    stdfs::rename(path, dir_ / "aside");
    EXPECT_FALSE(RebuildRecord({store_, tar}, {}).ok()) << path;
    if (path != paths.back()) {  // which holds only SHA256SUMS, and no name shows it
      EXPECT_FALSE(RestoreTar({store_, tar}, dir_ / "back/x", {}).ok()) << path;
      EXPECT_NE(Member().trouble.find(path + " is missing"), std::string::npos) << Member().trouble;
    }
    stdfs::rename(dir_ / "aside", path);
  }
  ASSERT_TRUE(RebuildRecord({store_, tar}, {}).ok());
  EXPECT_EQ(Trouble(), "");
}

TEST_F(TarPiecesTest, ParityOrTheSourceRepairsIt) {
  ASSERT_TRUE(Store(FileSystem::Posix(), {.parity = 0.1, .max_tar_bytes = 1}).ok());
  std::vector<std::string> good;
  for (const std::string& path : Paths()) good.push_back(BytesOf(path));
  const auto expect_good = [&] {
    ASSERT_EQ(Paths().size(), good.size());
    for (size_t i = 0; i < good.size(); ++i) EXPECT_TRUE(BytesOf(Paths()[i]) == good[i]) << Paths()[i];
    EXPECT_EQ(Trouble(), "");
  };
  const std::vector<std::string> paths = Paths();
  for (size_t i = 1; i + 1 < paths.size(); ++i) FlipByte(paths[i], 5000);
  stdfs::remove(paths[0]);  // the manifest's
  stdfs::resize_file(paths[1], 9000);
  stdfs::rename(dir_ / "gpt", dir_ / "gone");
  const auto how = RepairMember(store_, Member());
  ASSERT_TRUE(how.ok()) << how.status().message();
  EXPECT_EQ(*how, "repaired from its parity");
  expect_good();
  stdfs::rename(dir_ / "gone", dir_ / "gpt");
  stdfs::remove(paths[0] + ".parity");
  FlipByte(paths[2], 5000);
  ASSERT_TRUE(RepairMember(store_, Member()).ok());
  EXPECT_EQ(Trouble(), "");
  EXPECT_GT(Paths().size(), 1u);
}

TEST_F(TarPiecesTest, IsNeverBundledAndListsEveryFile) {
  ASSERT_TRUE(Store(FileSystem::Posix()).ok());
  const uint64_t large = uint64_t{1} << 40;
  EXPECT_TRUE(PlanBundles(*ListStore(store_), {large, large, large}, true, [](const auto&) {
                return false;
              }).bundles.empty());
  const auto state = [&] { return ListChecked(store_)->at(0).member.state; };
  EXPECT_EQ(state(), MemberState::kVerified);
  const std::string last = Paths().back();
  stdfs::rename(last, dir_ / "aside");
  EXPECT_EQ(state(), MemberState::kDamaged);
  stdfs::rename(dir_ / "aside", last);
  EXPECT_EQ(state(), MemberState::kVerified);
}

TEST_F(TarPiecesTest, NeedsOnlyThePiecesOfRequestedFiles) {
  ASSERT_TRUE(Store(FileSystem::Posix()).ok());
  const ArchiveRecord record = *Member().record;
  const TarPlace place = store_.Place(record);
  EXPECT_EQ(FilesWith(place, record, {"manifest.json"}), std::vector{FilesOf(place)[0]});
  EXPECT_EQ(FilesWith(place, record, {record.files[2].name}), std::vector{FilesOf(place)[2]});
  stdfs::remove(FilesOf(place)[3]);
  stdfs::copy(FilesOf(place)[4], FilesOf(place)[3]);  // another user's file: it is not read
  stdfs::resize_file(FilesOf(place)[3], record.pieces[3]);
  const auto view = OpenMember({store_, Member().tar});
  ASSERT_TRUE(view.ok()) << view.status().message();
  EXPECT_TRUE(ReadSmallFile(**view, JoinPath((*view)->root(), "index.h5"), 1 << 30).ok());
}

TEST_F(TarPiecesTest, RefusesAnInconsistentSidecar) {
  ASSERT_TRUE(Store(FileSystem::Posix()).ok());
  const ArchiveRecord good = *Member().record;
  ASSERT_EQ(*DecodeRecord(EncodeRecord(good)), good);
  const auto refused = [](const ArchiveRecord& record) {
    return DecodeRecord(EncodeRecord(record)).status().kind() == StatusKind::kCorrupt;
  };
  ArchiveRecord lying = good;
  lying.pieces.back() += 4096;
  EXPECT_TRUE(refused(lying));
  lying = good;
  lying.pieces.front() = UINT64_MAX;
  EXPECT_TRUE(refused(lying));
  lying = good;
  lying.pieces[0] += lying.pieces[1];  // a file would continue in the next
  lying.pieces[1] = 0;
  EXPECT_TRUE(refused(lying));
  lying = good;
  std::swap(lying.pieces[0], lying.pieces[1]);
  EXPECT_TRUE(refused(lying));
  lying = good;
  lying.bundle = "gpt-bundle-00000010-00000020.aaaaaaaa.tar";
  EXPECT_TRUE(refused(lying));
  ArchiveRecord whole = good;  // as an older program reads it
  whole.pieces.clear();
  EXPECT_NE(EncodeRecord(whole).find("\"version\": 2"), std::string::npos);
  EXPECT_NE(EncodeRecord(good).find("\"version\": 3"), std::string::npos);
}

// Stops after every change in turn: no incomplete member is listed as whole, and the next run finishes.
TEST_F(TarPiecesTest, AStopWhileStoringLeavesNoApparentMember) {
  bool done = false;
  for (int changes = 0; !done; ++changes) {
    StoppingFileSystem stopping(changes);
    done = Store(stopping, {.parity = 0.05, .max_tar_bytes = 1}).ok();
    for (const ArchiveMember& m : Members())
      EXPECT_TRUE(m.state != MemberState::kVerified || VerifyMember(store_, m).problems.empty()) << changes;
    ASSERT_TRUE(CleanStore(store_).ok());
    for (const std::string& name : FilesIn()) EXPECT_FALSE(name.ends_with(kPartialSuffix)) << name;
    ASSERT_TRUE(Store(FileSystem::Posix(), {.max_tar_bytes = 200'000}).ok()) << "after change " << changes;
    EXPECT_EQ(Trouble(), "");
    EXPECT_EQ(FilesIn().size(), Paths().size() + 1) << "after change " << changes;
    stdfs::remove_all(store_.directory());
    ASSERT_TRUE(MakeDirs(FileSystem::Posix(), store_.directory()).ok());
  }
}

TEST_F(TarPiecesTest, AStoppedRemovalIsFinished) {
  ASSERT_TRUE(Store(FileSystem::Posix(), {.parity = 0.05, .max_tar_bytes = 1}).ok());
  const std::string tar = Member().tar;
  stdfs::copy(store_.directory(), dir_ / "template");
  bool done = false;
  for (int changes = 0; !done; ++changes) {
    StoppingFileSystem stopping(changes);
    done = RemoveMember({stopping, store_.directory()}, tar).ok();
    const bool untouched = stdfs::exists(store_.Path(tar));
    for (const ArchiveMember& m : Members())
      EXPECT_EQ(m.state == MemberState::kVerified, untouched) << changes;
    ASSERT_TRUE(CleanStore(store_).ok());
    EXPECT_EQ(FilesIn().empty(), !untouched) << changes;
    stdfs::remove_all(store_.directory());
    stdfs::copy(dir_ / "template", store_.directory());
  }
}

}  // namespace
}  // namespace cairn
