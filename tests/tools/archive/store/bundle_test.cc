#include "tools/archive/store/bundle.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ckpt/model/layout.h"
#include "ckpt/step/step_reader.h"
#include "tests/support/file_bytes.h"
#include "tests/support/make_step.h"
#include "tests/support/stopping_file_system.h"
#include "tests/support/temp_dir.h"
#include "tools/archive/bundle/bundler.h"
#include "tools/archive/bundle/scrub.h"
#include "tools/archive/store/archiver.h"
#include "tools/archive/store/ledger.h"
#include "tools/archive/store/leftovers.h"
#include "tools/archive/store/rebuild.h"
#include "tools/archive/store/restore.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

std::vector<std::string> FilesIn(const std::string& path) { return FileSystem::Posix().List(path).value(); }

// Two steps of one run and a tree of files, archived.
class BundleTest : public testing::Test {
 protected:
  BundleTest() {
    EXPECT_TRUE(MakeDirs(FileSystem::Posix(), store_.directory()).ok());
    for (const int64_t step : {10, 20}) Save(step);
    EXPECT_TRUE(MakeDirs(FileSystem::Posix(), dir_ / "notes/deep").ok());
    std::ofstream(dir_ / "notes/deep/a.txt") << std::string(100000, 'a');
    EXPECT_TRUE(StoreTree(store_, dir_ / "notes", {}).ok());
  }

  void Save(int64_t number) {
    StepRecipe recipe = RecipeOf({.layers = 1}, {});
    recipe.step = number;
    recipe.seed = static_cast<uint64_t>(number);
    EXPECT_TRUE(MakeStep(FileSystem::Posix(), dir_ / "gpt", recipe).ok());
    const auto step = StepReader::Open(FileSystem::Posix(), SourceOf(number));
    EXPECT_TRUE(StoreStep(store_, **step, {}).ok());
  }

  std::string SourceOf(int64_t number) const { return dir_ / ("gpt/" + StepDirName(number)); }

  Status Bundle(FileSystem& fs, double parity = 0) {
    const uint64_t large = uint64_t{1} << 40;
    const auto problems = MakeBundles(
        {fs, store_.directory()},
        {.sizes = {.least = large, .target = large, .most = large}, .parity = parity, .all = true});
    problems_ = problems.ok() ? *problems : std::vector<std::string>{};
    return problems.status();
  }

  std::vector<ArchiveMember> Members() { return ListStore(store_).value(); }
  std::string OnlyBundle() {
    const auto names = ListBundles(store_).value();
    EXPECT_EQ(names.size(), 1u);
    return names.empty() ? "" : names[0];
  }
  // The problems of all members.
  std::vector<std::string> Problems() {
    std::vector<std::string> problems;
    for (const ArchiveMember& m : Members())
      for (const Problem& problem : VerifyMember(store_, m).problems) problems.push_back(ToString(problem));
    return problems;
  }

  TempDir dir_{TempDir::Place::kMemory};
  const Store store_{FileSystem::Posix(), dir_ / "store"};
  std::vector<std::string> problems_;
};

TEST_F(BundleTest, StoresEveryMemberInTwoFiles) {
  std::vector<std::string> before;
  for (const ArchiveMember& m : Members()) before.push_back(m.tar);
  ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());
  EXPECT_TRUE(problems_.empty());
  const std::string name = OnlyBundle();
  EXPECT_EQ(FilesIn(store_.directory()), (std::vector{name, name + ".json"}));
  EXPECT_EQ(ParseBundleName(name)->run, "runs");
  EXPECT_EQ(ParseBundleName(name)->last_step, 20);
  const auto members = Members();
  ASSERT_EQ(members.size(), before.size());
  for (size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(members[i].tar, before[i]);
    EXPECT_EQ(members[i].state, MemberState::kVerified);
    EXPECT_EQ(members[i].file(), name);
    EXPECT_GT(members[i].record->verified_unix_seconds, 0);
  }
  EXPECT_EQ(Problems(), std::vector<std::string>{});
  ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());  // nothing is left to do
  EXPECT_EQ(OnlyBundle(), name);
}

TEST_F(BundleTest, MembersAreReadInPlaceAndRestored) {
  ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());
  const auto member = FindMember(store_, "gpt@20");
  ASSERT_TRUE(member.ok());
  const auto view = OpenMember({store_, member->tar});
  ASSERT_TRUE(view.ok()) << view.status().message();
  for (const std::string& name : FilesIn(SourceOf(20)))
    EXPECT_EQ(ReadSmallFile(**view, JoinPath((*view)->root(), name), 1 << 30).value(),
              BytesOf(JoinPath(SourceOf(20), name)));
  const std::string back = dir_ / "back/step-00000020";
  ASSERT_TRUE(RestoreTar({store_, member->tar}, back, {}).ok());
  EXPECT_EQ(BytesOf(back + "/shard-00000.h5"), BytesOf(SourceOf(20) + "/shard-00000.h5"));
  const auto notes = FindMember(store_, "notes");
  ASSERT_TRUE(RestoreTar({store_, notes->tar}, dir_ / "notes-back", {}).ok());
  EXPECT_EQ(BytesOf(dir_ / "notes-back/deep/a.txt"), std::string(100000, 'a'));
  const auto step = StepReader::Open(FileSystem::Posix(), SourceOf(20));
  EXPECT_EQ(FindStored(store_, DescribeSource(**step)).value()->bundle, OnlyBundle());
}

TEST_F(BundleTest, DamageAffectsOneMemberWhichIsNotRestored) {
  ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());
  const std::string path = store_.Path(OnlyBundle());
  const auto members = Members();
  for (const ArchiveMember& damaged : members) {
    for (const ArchivedFile& file : damaged.record->files) {
      FlipByte(path, file.offset + file.stored_bytes / 2);
      for (const ArchiveMember& m : members)
        EXPECT_EQ(VerifyMember(store_, m).problems.empty(), m.tar != damaged.tar) << file.name;
      FlipByte(path, file.offset + file.stored_bytes / 2);
    }
    FlipByte(path, damaged.record->bundle_offset + 3);  // a name in a header
    EXPECT_FALSE(VerifyMember(store_, damaged).problems.empty());
    FlipByte(path, damaged.record->bundle_offset + 3);
  }
  FlipByte(path, members[0].record->files.back().offset + 1);
  EXPECT_FALSE(RestoreTar({store_, members[0].tar}, dir_ / "back/step-00000010", {}).ok());
  EXPECT_FALSE(stdfs::exists(dir_ / "back/step-00000010"));
  stdfs::resize_file(path, stdfs::file_size(path) - 4096);
  EXPECT_EQ(Members()[0].state, MemberState::kDamaged);
}

TEST_F(BundleTest, LeavesOutAndReportsADamagedTar) {
  const auto member = FindMember(store_, "gpt@10");
  FlipByte(store_.Path(member->tar), member->record->files.back().offset + 100);
  ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_NE(problems_[0].find(member->tar), std::string::npos) << problems_[0];
  EXPECT_TRUE(stdfs::exists(store_.Path(member->tar)));
  EXPECT_EQ(ReadBundle(store_, OnlyBundle())->members.size(), 2u);
}

TEST_F(BundleTest, ABundleIsWrittenOnce) {
  ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());
  const std::string first = OnlyBundle();
  Save(30);
  ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());
  EXPECT_EQ(OnlyBundle(), first);
  EXPECT_EQ(FindMember(store_, "gpt@30")->file(), FindMember(store_, "gpt@30")->tar);
  Save(40);
  ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());
  EXPECT_EQ(ListBundles(store_)->size(), 2u);
  EXPECT_EQ(ReadBundle(store_, first)->members.size(), 3u);
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

// Stops after every change in turn: every member is proven somewhere, and the next run finishes.
TEST_F(BundleTest, AStopAtAnyOperationLosesNoMember) {
  Save(30);
  const std::string template_store = dir_ / "template";
  stdfs::copy(store_.directory(), template_store);
  bool done = false;
  int changes = 0;
  for (; !done; ++changes) {
    StoppingFileSystem stopping(changes);
    done = Bundle(stopping, 0.03).ok();
    size_t proven = 0;
    for (const ArchiveMember& m : Members())
      proven += m.state == MemberState::kVerified && VerifyMember(store_, m).problems.empty();
    ASSERT_EQ(proven, 4u) << "after change " << changes;
    ASSERT_TRUE(CleanStore(store_).ok());
    ASSERT_TRUE(Bundle(FileSystem::Posix()).ok()) << "after change " << changes;
    EXPECT_EQ(problems_, std::vector<std::string>{}) << "after change " << changes;
    ASSERT_EQ(ReadBundle(store_, OnlyBundle())->members.size(), 4u);
    EXPECT_EQ(Problems(), std::vector<std::string>{});
    for (const std::string& name : FilesIn(store_.directory()))
      EXPECT_TRUE(name.starts_with(OnlyBundle())) << name << " after change " << changes;
    stdfs::remove_all(store_.directory());
    stdfs::copy(template_store, store_.directory());
  }
  EXPECT_GT(changes, 10);
}

TEST_F(BundleTest, RebuildsALostSidecarFromTheBundle) {
  ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());
  const std::string name = OnlyBundle();
  const auto before = Members();
  ASSERT_TRUE(FileSystem::Posix().RemoveFile(store_.Path(name + ".json")).ok());
  ASSERT_EQ(Members().size(), 1u);  // the bundle's members are unknown without the sidecar
  EXPECT_EQ(Members()[0].state, MemberState::kStored);
  EXPECT_EQ(Members()[0].tar, name);
  EXPECT_FALSE(Problems().empty());
  const auto rebuilt = RebuildBundle(store_, name);
  ASSERT_TRUE(rebuilt.ok()) << rebuilt.status().message();
  EXPECT_TRUE(rebuilt->empty());
  const auto after = Members();
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i].record->files, before[i].record->files);
  FlipByte(store_.Path(name), before[0].record->files.back().offset + 1);
  EXPECT_EQ(RebuildBundle(store_, name)->size(), 1u);
  ASSERT_EQ(Members().size(), before.size());  // none is forgotten
  EXPECT_EQ(Members()[0].state, MemberState::kDamaged);
  EXPECT_EQ(Members()[1].state, MemberState::kVerified);
  FlipByte(store_.Path(name), before[0].record->files.back().offset + 1);
  EXPECT_TRUE(RebuildBundle(store_, name)->empty());
  EXPECT_EQ(Members()[0].state, MemberState::kVerified);
}

TEST_F(BundleTest, ParityRepairsTheWholeBundle) {
  ASSERT_TRUE(Bundle(FileSystem::Posix(), 0.05).ok());
  const std::string path = store_.Path(OnlyBundle()), good = BytesOf(path);
  stdfs::rename(dir_ / "gpt", dir_ / "gone");
  for (const ArchiveMember& m : Members()) FlipByte(path, m.record->files.back().offset + 7);
  const auto how = RepairMember(store_, Members()[0]);
  ASSERT_TRUE(how.ok()) << how.status().message();
  EXPECT_TRUE(BytesOf(path) == good);
}

TEST_F(BundleTest, AMemberRepairedFromItsSourceLeavesTheBundle) {
  ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());
  const std::string name = OnlyBundle();
  const auto member = FindMember(store_, "gpt@10");
  FlipByte(store_.Path(name), member->record->files.back().offset + 7);
  ASSERT_TRUE(RepairMember(store_, *member).ok());
  EXPECT_EQ(FindMember(store_, "gpt@10")->file(), member->tar);
  EXPECT_EQ(ReadBundle(store_, name)->members.size(), 2u);
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

TEST_F(BundleTest, RemovesTheOtherCopyOnlyAfterTheBundleIsProven) {
  const auto member = *FindMember(store_, "gpt@10");
  const std::string tar = store_.Path(member.tar);
  for (const char* suffix : {"", ".json"}) stdfs::copy(tar + suffix, dir_ / (std::string("kept") + suffix));
  ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());
  const std::string bundle = OnlyBundle();
  const auto bundled = *FindMember(store_, "gpt@10");
  for (const bool damaged : {false, true}) {
    for (const char* suffix : {"", ".json"}) stdfs::copy(dir_ / (std::string("kept") + suffix), tar + suffix);
    if (damaged) FlipByte(store_.Path(bundle), bundled.record->files.back().offset + 7);
    ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());
    EXPECT_EQ(problems_.size(), damaged ? 1u : 0u);
    EXPECT_EQ(stdfs::exists(tar), damaged);
    EXPECT_EQ(ReadBundle(store_, OnlyBundle())->members.size(), damaged ? 2u : 3u);
    EXPECT_EQ(Problems(), std::vector<std::string>{});
  }
}

TEST_F(BundleTest, AListShowsBundlesAndTheirChecks) {
  const auto listed = [&] { return ListChecked(store_).value(); };
  EXPECT_EQ(listed().size(), 3u);
  ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());
  ASSERT_EQ(listed().size(), 3u);
  for (const CheckedMember& entry : listed()) {
    EXPECT_EQ(entry.member.file(), OnlyBundle());
    EXPECT_EQ(entry.member.state, MemberState::kVerified);
  }
  const std::string dropped = listed()[2].member.tar;
  const int64_t now = std::time(nullptr);
  ASSERT_TRUE(Ledger::Open(store_)->SetScrub(*listed()[0].member.record, {now, "a bit"}).ok());
  ASSERT_TRUE(DropFromBundle(store_, OnlyBundle(), dropped).ok());
  ASSERT_EQ(listed().size(), 2u);
  EXPECT_EQ(listed()[0].scrub.unix_seconds, now);
  const std::string bundle = store_.Path(OnlyBundle());  // changed: earlier checks do not count now
  stdfs::last_write_time(bundle, stdfs::last_write_time(bundle) + std::chrono::hours(1));
  EXPECT_EQ(listed()[0].scrub.unix_seconds, 0);
  stdfs::remove(dir_ / "store/ledger.sqlite");
  EXPECT_EQ(listed().size(), 2u);
  ASSERT_TRUE(RemoveMember(store_, OnlyBundle()).ok());
  EXPECT_TRUE(listed().empty());
}

TEST_F(BundleTest, AnUnfinishedBundleLeavesNothing) {
  // No space for a file whose name ends like this.
  struct FullDisk final : WrappedFileSystem {
    explicit FullDisk(std::string_view ending)
        : WrappedFileSystem(FileSystem::Posix()), refused(std::string(ending) + ".partial") {}
    const std::string refused;
    Status Do(const FsCall& call, const std::function<Status()>& run) override {
      const bool full = call.kind == FsCall::Kind::kCreate && call.path.ends_with(refused);
      return full ? NoSpace("{}: no room", call.path) : run();
    }
  };
  const std::vector<std::string> before = FilesIn(store_.directory());
  for (const char* ending : {".tar", ".tar.parity", ".tar.json"}) {
    FullDisk disk(ending);
    EXPECT_EQ(Bundle(disk, /*parity=*/0.03).kind(), StatusKind::kNoSpace) << ending;
    EXPECT_EQ(FilesIn(store_.directory()), before) << ending;
  }
}

// Found by faults --goal power_loss --long: the tar was durably removed and its sidecar was not.
TEST_F(BundleTest, RemovesSidecarsOnlyAfterTarsAreDurablyRemoved) {
  struct Journal final : WrappedFileSystem {
    using WrappedFileSystem::WrappedFileSystem;
    std::vector<std::string> calls;
    Status Do(const FsCall& call, const std::function<Status()>& run) override {
      const bool removes = call.kind == FsCall::Kind::kRemoveFile;
      if (removes) calls.push_back(stdfs::path(call.path).extension());
      if (call.kind == FsCall::Kind::kSyncDir) calls.push_back("sync");
      return run();
    }
  };
  ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());
  Journal journal(FileSystem::Posix());
  ASSERT_TRUE(RemoveMember({journal, store_.directory()}, OnlyBundle()).ok());
  EXPECT_EQ(journal.calls,
            (std::vector<std::string>{"sync", ".json", ".parity", "sync", ".deleting", "sync"}));
}

TEST_F(BundleTest, DetectsEveryFlippedByteOfASidecar) {
  ASSERT_TRUE(Bundle(FileSystem::Posix()).ok());
  const std::string name = OnlyBundle();
  const std::string text = BytesOf(store_.Path(name + ".json"));
  ASSERT_TRUE(DecodeBundle(text, name).ok());
  for (size_t i = 0; i < text.size(); i += 7) {
    std::string damaged = text;
    damaged[i] ^= 1;
    EXPECT_FALSE(DecodeBundle(damaged, name).ok()) << i;
  }
  EXPECT_FALSE(DecodeBundle(text, "x-bundle-1-2.aaaaaaaa.tar").ok());
  // A record with bytes outside of the bundle, or with another directory's path, although its digest fits.
  cairn::Bundle lying = *DecodeBundle(text, name);
  lying.members[0].files[0].offset = lying.tar_bytes + 1;
  EXPECT_EQ(DecodeBundle(EncodeBundle(lying), name).status().kind(), StatusKind::kCorrupt);
  lying = *DecodeBundle(text, name);
  lying.members[1].directory = lying.members[0].directory;
  EXPECT_EQ(DecodeBundle(EncodeBundle(lying), name).status().kind(), StatusKind::kCorrupt);
}

TEST(BundleNameTest, DiffersFromNamesOfSingleTars) {
  EXPECT_EQ(ParseTarName("gpt-bundle-00000010-00000020.aaaaaaaa.tar"), std::nullopt);
  EXPECT_EQ(ParseBundleName("gpt-bundle-00000010-00000020.aaaaaaaa.tar")->first_step, 10);
  for (const char* name : {"gpt-step-00000010.aaaaaaaa.tar", "gpt-bundle-1-2-step-00000010.aaaaaaaa.tar",
                           "-bundle-1-2.aaaaaaaa.tar", "gpt-bundle-1.aaaaaaaa.tar", "gpt-bundle-1-2.tar",
                           "../gpt-bundle-1-2.aaaaaaaa.tar", "gpt-bundle-1--2.aaaaaaaa.tar"})
    EXPECT_FALSE(ParseBundleName(name)) << name;
}

}  // namespace
}  // namespace cairn
