// Stores of older programs stay readable (tests/golden/archive-v1).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/temp_dir.h"
#include "tools/archive/bundle/scrub.h"
#include "tools/archive/store/rebuild.h"
#include "tools/archive/store/restore.h"
#include "tools/archive/store/store_member.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

class GoldenStores : public testing::Test {
 protected:
  GoldenStores() {
    const stdfs::path stores = CAIRN_GOLDEN_DIR "/archive-v1/stores.tar.gz";
    EXPECT_EQ(std::system(fmt::format("tar -xzf '{}' -C '{}'", stores.string(), dir_.path()).c_str()), 0);
  }

  ArchiveMember Member(const std::string& store, const std::string& name) {
    const auto member = FindMember({FileSystem::Posix(), dir_ / store}, name);
    EXPECT_TRUE(member.ok()) << member.status().message();
    return member.ok() ? *member : ArchiveMember{};
  }

  void ExpectNotes(const std::string& path) {
    EXPECT_EQ(ReadSmallFile(FileSystem::Posix(), path + "/a.txt", 100).value(), "first\n");
    EXPECT_EQ(ReadSmallFile(FileSystem::Posix(), path + "/deep/er/b.bin", 1 << 20).value(),
              std::string(70000, 'b'));
    EXPECT_EQ(ReadSmallFile(FileSystem::Posix(), path + "/deep/empty", 100).value(), "");
  }

  TempDir dir_{TempDir::Place::kMemory};
};

TEST_F(GoldenStores, ListAndVerify) {
  size_t count = 0;
  for (const char* store : {"store", "bundled", "pieces"}) {
    const auto members = ListStore({FileSystem::Posix(), dir_ / store});
    for (const ArchiveMember& member : *members) {
      ++count;
      EXPECT_EQ(member.state, MemberState::kVerified) << member.tar;
      for (const Problem& problem : VerifyMember({FileSystem::Posix(), dir_ / store}, member).problems)
        ADD_FAILURE() << ToString(problem);
      EXPECT_EQ(DecodeRecord(EncodeRecord(*member.record)).value(), *member.record);
    }
  }
  EXPECT_EQ(count, 6u);
}

TEST_F(GoldenStores, Restore) {
  for (const char* store : {"store", "bundled", "pieces"}) {
    const std::string back = dir_ / std::string("back-") + store;
    const Status restored =
        RestoreTar({{FileSystem::Posix(), dir_ / store}, Member(store, "notes").tar}, back, {});
    ASSERT_TRUE(restored.ok()) << restored.message();
    ExpectNotes(back);
  }
  for (const auto& [store, form] : {std::pair("store", Form::kFull), std::pair("bundled", Form::kWeights)}) {
    const ArchiveMember gpt = Member(store, "gpt@10");
    EXPECT_EQ(gpt.form, form);
    const std::string back = dir_ / fmt::format("{}-back/step-00000010", store);
    const Status restored = RestoreTar({{FileSystem::Posix(), dir_ / store}, gpt.tar}, back, {});
    ASSERT_TRUE(restored.ok()) << restored.message();
    const auto step = StepReader::Open(FileSystem::Posix(), back);
    ASSERT_TRUE(step.ok()) << step.status().message();
    EXPECT_EQ(ToHex(DigestOf(EncodeManifest((*step)->manifest()))), gpt.record->manifest_digest);
  }
}

TEST_F(GoldenStores, RebuildTheirSidecarsFromTheirTars) {
  for (const char* store : {"store", "pieces"}) {
    const auto members = ListStore({FileSystem::Posix(), dir_ / store});
    for (const ArchiveMember& member : *members) {
      const std::string path = JoinPath(dir_ / store, member.tar);
      stdfs::remove(path + ".json");
      const auto rebuilt = RebuildRecord({{FileSystem::Posix(), dir_ / store}, member.tar}, {});
      ASSERT_TRUE(rebuilt.ok()) << rebuilt.status().message();
      EXPECT_EQ(rebuilt->record().files, member.record->files);
      EXPECT_EQ(rebuilt->record().manifest_digest, member.record->manifest_digest);
    }
  }
}

TEST_F(GoldenStores, RepairFromTheirParity) {
  const ArchiveMember notes = Member("store", "notes");
  const std::string tar = JoinPath(dir_ / "store", notes.tar);
  const std::string whole = ReadSmallFile(FileSystem::Posix(), tar, 1 << 20).value();
  stdfs::resize_file(tar, notes.record->files[1].offset + 9);
  const auto how = RepairMember({FileSystem::Posix(), dir_ / "store"}, notes);
  ASSERT_TRUE(how.ok()) << how.status().message();
  EXPECT_TRUE(ReadSmallFile(FileSystem::Posix(), tar, 1 << 20).value() == whole);
}

}  // namespace
}  // namespace cairn
