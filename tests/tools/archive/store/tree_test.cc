#include "tools/archive/store/tree.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ckpt/base/sidecar_text.h"
#include "ckpt/model/layout.h"
#include "tests/support/file_bytes.h"
#include "tests/support/stopping_file_system.h"
#include "tests/support/temp_dir.h"
#include "tools/archive/bundle/scrub.h"
#include "tools/archive/store/archiver.h"
#include "tools/archive/store/delete.h"
#include "tools/archive/store/rebuild.h"
#include "tools/archive/store/restore.h"
#include "tools/archive/tar/tar_pieces.h"
#include "tools/check/removal_proof.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

void Write(const std::string& path, const std::string& bytes) {
  stdfs::create_directories(stdfs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

void SetTime(const std::string& path, int64_t seconds, long nanoseconds = 0) {
  const timespec times[] = {{seconds, nanoseconds}, {seconds, nanoseconds}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
}

// In place, keeping size and time.
void Rewrite(const std::string& path, const std::string& bytes) {
  struct stat st;
  ASSERT_EQ(::stat(path.c_str(), &st), 0);
  ASSERT_EQ(static_cast<size_t>(st.st_size), bytes.size());
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << bytes;
  SetTime(path, st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
}

// The properties that a restored tree shares with its source, one line per entry.
std::vector<std::string> Portrait(const std::string& root) {
  std::vector<std::string> lines;
  const auto add = [&](const stdfs::path& path) {
    struct stat st;
    EXPECT_EQ(::lstat(path.c_str(), &st), 0);
    const std::string content = S_ISLNK(st.st_mode)   ? stdfs::read_symlink(path).string()
                                : S_ISREG(st.st_mode) ? BytesOf(path)
                                                      : "";
    lines.push_back(fmt::format("{} {:o} {}:{} {}.{:09} {}", path.lexically_relative(root).string(),
                                static_cast<unsigned>(st.st_mode), st.st_uid, st.st_gid, st.st_mtim.tv_sec,
                                st.st_mtim.tv_nsec, content));
  };
  add(root);
  for (const auto& entry : stdfs::recursive_directory_iterator(root)) add(entry.path());
  std::ranges::sort(lines);
  return lines;
}

class TreeTest : public testing::Test {
 protected:
  TreeTest() { EXPECT_TRUE(MakeDirs(FileSystem::Posix(), store_.directory()).ok()); }

  Result<ArchiveOutcome> Run(const std::string& tree, bool delete_source = false,
                             Links links = Links::kRefuse) {
    ArchiveRequest request{{.path = tree, .native = false}, false, delete_source};
    request.links = links;
    request.find_proof = [](const std::string& path) {
      return RemovalProofs(FileSystem::Posix(), {.tree = true}, /*show_progress=*/false).For(path);
    };
    return Archive(store_, request, {}, {});
  }
  Status Restore(const ArchiveRecord& record, const std::string& destination) {
    return RestoreTar({store_, TarName(record)}, destination, {});
  }
  std::vector<ArchiveMember> Members() { return ListStore(store_).value(); }
  std::string TarOf(const ArchiveRecord& record) { return store_.Path(TarName(record)); }

  // Everything that a tree may contain.
  std::string MakeOddTree() {
    const std::string root = dir_ / "odd";
    for (const std::string& name :
         {std::string("plain"), std::string("\xc3\xa4.bin"), std::string("bad\xff\xfe"),
          std::string("line\nbreak"), std::string("back\\slash"), std::string("\\x41"), std::string("cr\r"),
          std::string(" -n * "), std::string(255, 'n'), std::string("SHA256SUMS"),
          std::string("SHA256SUMS.cairn"),
          std::string(250, 'd') + "/" + std::string(250, 'e') + "/" + std::string(255, 'f')})
      Write(root + "/" + name, name);
    Write(root + "/secret/key", std::string(100'000, 'k'));
    stdfs::create_directories(root + "/empty/er");
    stdfs::create_symlink("plain", root + "/link");
    stdfs::create_symlink("../bad\xff\xfe", root + "/secret/up");
    stdfs::create_symlink("nowhere", root + "/dangling");
    stdfs::create_symlink("empty", root + "/to-directory");
    ::chmod((root + "/secret/key").c_str(), 0600);
    ::chmod((root + "/plain").c_str(), 04751);
    ::chmod((root + "/secret").c_str(),
            ::geteuid() == 0 ? 0500 : 0700);  // only root could delete it
    ::chmod((root + "/empty/er").c_str(), 01777);
    if (::geteuid() == 0) {
      EXPECT_EQ(::chown((root + "/secret/key").c_str(), 3'000'000, 12), 0);
      EXPECT_EQ(::lchown((root + "/link").c_str(), 7, 8), 0);
    }
    SetTime(root + "/plain", 1'000'000'000, 123'456'789);
    SetTime(root + "/secret/key", -86'400);
    SetTime(root + "/link", 1'111'111'111, 1);
    SetTime(root + "/empty/er", 13'000'000'000, 999'999'999);
    SetTime(root + "/empty", 1'200'000'000, 5);
    SetTime(root, 1'300'000'000, 7);
    ::chmod(root.c_str(), 0700);
    return root;
  }

  TempDir dir_;
  const Store store_{FileSystem::Posix(), dir_ / "store"};
};

TEST_F(TreeTest, TreesOfEqualNamesSizesAndTimesAreSeparateMembers) {
  for (const std::string run : {"a", "b"}) {
    Write(dir_ / (run + "/m/w"), std::string(50'000, run[0]));
    SetTime(dir_ / (run + "/m/w"), 1'700'000'000);
  }
  const auto a = Run(dir_ / "a/m", true), b = Run(dir_ / "b/m", true);
  ASSERT_TRUE(a.ok() && b.ok()) << a.status().message() << b.status().message();
  EXPECT_TRUE(a->stored && b->stored && a->deleted && b->deleted);
  EXPECT_EQ(Members().size(), 2u);
  ASSERT_TRUE(Restore(a->record, dir_ / "back-a").ok());
  ASSERT_TRUE(Restore(b->record, dir_ / "back-b").ok());
  EXPECT_EQ(BytesOf(dir_ / "back-a/w"), std::string(50'000, 'a'));
  EXPECT_EQ(BytesOf(dir_ / "back-b/w"), std::string(50'000, 'b'));
  const auto both = FindMember(store_, "m");  // the message names both
  EXPECT_NE(both.status().message().find(dir_ / "a/m"), std::string::npos) << both.status().message();
}

TEST_F(TreeTest, TreesAreIdentifiedByPathAndStoredOnce) {
  for (const std::string run : {"a", "b"}) Write(dir_ / (run + "/m/w"), "same");
  ASSERT_TRUE(Run(dir_ / "a/m")->stored);
  EXPECT_FALSE(Run(dir_ / "a/m")->stored);
  EXPECT_FALSE(Run(dir_ / "a/../a/m/")->stored);
  EXPECT_TRUE(Run(dir_ / "b/m")->stored);
  ::chmod((dir_ / "a/m/w").c_str(), 0600);
  EXPECT_TRUE(Run(dir_ / "a/m")->stored);
}

TEST_F(TreeTest, AFileRewrittenInPlaceIsStoredAgainBeforeDeletion) {
  const std::string tree = dir_ / "m";
  Write(tree + "/w", "old bytes");
  SetTime(tree + "/w", 1'700'000'000);
  const auto copy = StoreTree(store_, tree, {});
  ASSERT_TRUE(copy.ok()) << copy.status().message();
  Rewrite(tree + "/w", "new bytes");
  const Status refused = DeleteSource(store_, tree, *copy);
  EXPECT_EQ(refused.kind(), StatusKind::kCorrupt) << refused.message();
  EXPECT_NE(refused.message().find("/w differs"), std::string::npos) << refused.message();
  const auto again = Run(tree, true);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_TRUE(again->stored && again->deleted);
  ASSERT_TRUE(Restore(again->record, dir_ / "back").ok());
  EXPECT_EQ(BytesOf(dir_ / "back/w"), "new bytes");
}

TEST_F(TreeTest, ReadsFilesAgainIfTheyMayHaveChanged) {
  const std::string tree = dir_ / "m";
  Write(tree + "/w", "old bytes");
  const auto before = DescribeTree(FileSystem::Posix(), tree, Links::kRefuse);
  Rewrite(tree + "/w", "new bytes");
  const auto after = DescribeTree(FileSystem::Posix(), tree, Links::kRefuse);
  EXPECT_NE(before->manifest_digest, after->manifest_digest);
  EXPECT_FALSE(CompareTrees(*after, *before).ok());
}

TEST_F(TreeTest, ARepairRefusesChangedContent) {
  const std::string tree = dir_ / "m";
  Write(tree + "/w", "old bytes");
  ASSERT_TRUE(Run(tree).ok());
  const ArchiveMember member = Members()[0];
  const std::string tar = TarOf(*member.record);
  FlipByte(tar, member.record->files[0].offset);
  const std::string damaged = BytesOf(tar);
  Rewrite(tree + "/w", "new bytes");
  const auto refused = RepairMember(store_, member);
  EXPECT_NE(refused.status().message().find("/w differs"), std::string::npos) << refused.status().message();
  EXPECT_EQ(Members().size(), 1u);
  EXPECT_TRUE(BytesOf(tar) == damaged);
  Rewrite(tree + "/w", "old bytes");
  const auto repaired = RepairMember(store_, member);
  ASSERT_TRUE(repaired.ok()) << repaired.status().message();
  EXPECT_TRUE(VerifyMember(store_, Members()[0]).problems.empty());
}

TEST_F(TreeTest, AnUnusualTreeRoundTrips) {
  const std::string root = MakeOddTree();
  const auto before = Portrait(root);
  int number = 0;
  for (const StoreOptions& options :
       {StoreOptions{}, StoreOptions{.pack = true}, StoreOptions{.max_tar_bytes = 1}}) {
    const auto copy = StoreTree(store_, root, {}, options);
    ASSERT_TRUE(copy.ok()) << copy.status().message();
    const std::string back = dir_ / fmt::format("back{}", number++);
    const Status restored = Restore(copy->record(), back);
    ASSERT_TRUE(restored.ok()) << restored.message();
    EXPECT_EQ(Portrait(back), before);
    EXPECT_EQ(Portrait(root), before);
  }
  const auto stored = Run(root, /*delete_source=*/true);
  ASSERT_TRUE(stored.ok()) << stored.status().message();
  EXPECT_FALSE(stored->stored);
  EXPECT_FALSE(stdfs::exists(root));
}

TEST_F(TreeTest, RebuildsTheSidecarOfAnUnusualTree) {
  const std::string root = MakeOddTree();
  for (const StoreOptions& options : {StoreOptions{}, StoreOptions{.pack = true, .max_tar_bytes = 1}}) {
    const auto copy = StoreTree(store_, root, {}, options);
    ASSERT_TRUE(copy.ok()) << copy.status().message();
    ArchiveRecord record = copy->record();
    EXPECT_EQ(DecodeRecord(EncodeRecord(record)).value(), record);
    stdfs::remove(TarOf(record) + ".json");
    const auto rebuilt = RebuildRecord({store_, TarName(record)}, {});
    ASSERT_TRUE(rebuilt.ok()) << rebuilt.status().message();
    record.verified_unix_seconds = rebuilt->record().verified_unix_seconds;
    EXPECT_EQ(EncodeRecord(rebuilt->record()), EncodeRecord(record));
  }
}

TEST_F(TreeTest, AHoleIsRestoredAsAHole) {
  Write(dir_ / "m/sparse", "begin");
  stdfs::resize_file(dir_ / "m/sparse", 64 << 20);
  Write(dir_ / "m/zeros", std::string(4096, '\0'));
  Write(dir_ / "m/odd", std::string(3 * 4096 + 5, '\0') + "end");
  const auto stored = Run(dir_ / "m");
  ASSERT_TRUE(Restore(stored->record, dir_ / "back").ok());
  for (const char* name : {"sparse", "zeros", "odd"})
    EXPECT_TRUE(BytesOf(dir_ / "m/" + name) == BytesOf(dir_ / "back/" + name)) << name;
  struct stat st;
  ASSERT_EQ(::stat((dir_ / "back/sparse").c_str(), &st), 0);
  EXPECT_LT(st.st_blocks * 512, 1 << 20);
}

TEST_F(TreeTest, LinksThatLeadOutsideAreRefusedKeptOrFollowed) {
  Write(dir_ / "blobs/1", "content");
  Write(dir_ / "blobs/deep/2", "deeper");
  stdfs::create_directories(dir_ / "snapshot/s");
  stdfs::create_symlink("../../blobs/1", dir_ / "snapshot/s/w");
  stdfs::create_symlink(dir_ / "blobs/deep", dir_ / "snapshot/d");
  Write(dir_ / "snapshot/own", "own");
  stdfs::create_symlink("../own", dir_ / "snapshot/s/inside");
  const auto refused = Run(dir_ / "snapshot");
  EXPECT_EQ(refused.status().kind(), StatusKind::kNotSupported);
  EXPECT_NE(refused.status().message().find("--links follow"), std::string::npos);
  EXPECT_TRUE(Members().empty());
  const auto kept = Run(dir_ / "snapshot", false, Links::kKeep);
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  const auto followed = Run(dir_ / "snapshot", true, Links::kFollow);
  ASSERT_TRUE(followed.ok()) << followed.status().message();
  EXPECT_TRUE(followed->stored && followed->deleted);
  EXPECT_EQ(BytesOf(dir_ / "blobs/deep/2"), "deeper");  // only links to it were removed
  ASSERT_TRUE(Restore(kept->record, dir_ / "kept").ok());
  EXPECT_EQ(stdfs::read_symlink(dir_ / "kept/s/w"), "../../blobs/1");
  EXPECT_EQ(stdfs::read_symlink(dir_ / "kept/d"), dir_ / "blobs/deep");
  ASSERT_TRUE(Restore(followed->record, dir_ / "followed").ok());
  EXPECT_EQ(BytesOf(dir_ / "followed/s/w"), "content");
  EXPECT_FALSE(stdfs::is_symlink(dir_ / "followed/d"));
  EXPECT_EQ(BytesOf(dir_ / "followed/d/2"), "deeper");
  EXPECT_EQ(stdfs::read_symlink(dir_ / "followed/s/inside"), "../own");
}

TEST_F(TreeTest, ALinkThroughALinkThatLeadsOutsideLeadsOutside) {
  Write(dir_ / "out/x", "x");
  Write(dir_ / "m/own", "own");
  stdfs::create_symlink("../out", dir_ / "m/d");
  stdfs::create_symlink("d/x", dir_ / "m/through");
  const auto files = ListTree(FileSystem::Posix(), dir_ / "m", Links::kKeep);
  ASSERT_TRUE(files.ok());
  for (const TreeFile& file : *files) EXPECT_EQ(file.leaves, file.kind == EntryKind::kLink) << file.name;
}

TEST_F(TreeTest, RefusesCyclesAndSpecialFilesByName) {
  Write(dir_ / "m/own", "own");
  stdfs::create_symlink(dir_ / "m", dir_ / "m/round");
  EXPECT_NE(Run(dir_ / "m", false, Links::kFollow).status().message().find("/round: it contains itself"),
            std::string::npos);
  stdfs::remove(dir_ / "m/round");
  ASSERT_EQ(::mkfifo((dir_ / "m/pipe").c_str(), 0600), 0);
  EXPECT_NE(Run(dir_ / "m").status().message().find("/pipe: it is not a file"), std::string::npos);
  stdfs::remove(dir_ / "m/pipe");
  Write(dir_ / "m/x.planes.zst", "x");
  EXPECT_NE(Run(dir_ / "m").status().message().find("x.planes.zst: its name"), std::string::npos);
  EXPECT_TRUE(Members().empty());
}

TEST_F(TreeTest, ARestoredTreeIsComparedWithItsRecord) {
  Write(dir_ / "m/d/w", "bytes");
  stdfs::create_symlink("d/w", dir_ / "m/link");
  const auto stored = Run(dir_ / "m");
  ASSERT_TRUE(stored.ok());
  const ArchiveRecord record = stored->record;
  const auto refuses = [&](const char* what, auto change) {
    ArchiveRecord edited = record;
    change(edited);
    ASSERT_TRUE(ReplaceSmallFile(FileSystem::Posix(), TarOf(record) + ".json", EncodeRecord(edited)).ok());
    EXPECT_EQ(Restore(record, dir_ / "back").kind(), StatusKind::kCorrupt) << what;
    EXPECT_FALSE(stdfs::exists(dir_ / "back")) << what;
  };
  refuses("no files", [](ArchiveRecord& r) { r.files.clear(); });
  refuses("no entries", [](ArchiveRecord& r) { r.tree->entries.resize(2); });
  refuses("sum", [](ArchiveRecord& r) { r.files[0].sha256[0] ^= 1; });
  refuses("size", [](ArchiveRecord& r) { r.files[0].bytes = 4; });
  refuses("mode", [](ArchiveRecord& r) { r.files[0].facts.mode = 0777; });
  refuses("target", [](ArchiveRecord& r) { r.tree->entries.back().target = "/etc/passwd"; });
  refuses("path", [](ArchiveRecord& r) { r.source = "/elsewhere"; });
  refuses("old record", [](ArchiveRecord& r) { r.tree.reset(); });
  ASSERT_TRUE(ReplaceSmallFile(FileSystem::Posix(), TarOf(record) + ".json", EncodeRecord(record)).ok());
  EXPECT_TRUE(Restore(record, dir_ / "back").ok());
}

TEST(EscapedNames, AreUtf8AndRoundTrip) {
  uint32_t random = 1;
  for (int i = 0; i < 2000; ++i) {
    std::string name;
    for (uint32_t length = 0; length < 12; ++length) {
      random = random * 1664525 + 1013904223;
      constexpr std::string_view kOdd = "\\x\xc3\xa4\xed\xa0\x80\xf0\x9f\x98\x80\xf4\x90\xff\n0";
      name += random & 0x80000000 ? kOdd[(random >> 16) % kOdd.size()] : static_cast<char>(random >> 20);
    }
    const std::string text = EscapeName(name);
    EXPECT_EQ(UnescapeName(text).value(), name);
    EXPECT_NO_THROW((void)nlohmann::json(text).dump());  // throws if it is not UTF-8
  }
  EXPECT_EQ(EscapeName("a\\b\xff"), "a\\\\b\\xff");
  for (const char* bad : {"\\", "\\y", "\\x4", "\\x41", "\\xFF", "\xff"})
    EXPECT_EQ(UnescapeName(bad).status().kind(), StatusKind::kCorrupt) << bad;
}

TEST_F(TreeTest, AFailedRestoreLeavesNothing) {
  const std::string tree = dir_ / "tree", destination = dir_ / "back/tree";
  Write(tree + "/a/key", "secret");
  stdfs::create_symlink("a/key", tree + "/link");
  ::chmod((tree + "/a/key").c_str(), 0600);
  const auto copy = Run(tree);
  ASSERT_TRUE(copy.ok()) << copy.status().message();
  for (int changes = 0;; ++changes) {
    StoppingFileSystem stopping(changes);
    if (RestoreTar({{stopping, store_.directory()}, TarName(copy->record)}, destination, {}).ok()) break;
    if (stdfs::exists(destination)) {  // only its name was not synced
      EXPECT_EQ(Portrait(destination), Portrait(tree)) << changes;
    }
    stdfs::remove_all(dir_ / "back");  // a dead disk cannot be cleaned up
  }
  EXPECT_EQ(Portrait(destination), Portrait(tree));
}

}  // namespace
}  // namespace cairn
