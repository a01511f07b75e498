#include "tools/archive/store/ledger.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_dir.h"
#include "tools/archive/store/claims.h"

namespace cairn {
namespace {

class LedgerTest : public testing::Test {
 protected:
  std::string Put(int64_t step) {
    ArchiveRecord record{.name = "gpt", .run = std::string(32, '1'), .step = step, .directory = "gpt/x"};
    record.manifest_digest = std::string(32, 'a');
    record.tar_bytes = 3;
    record.files = {{.name = "manifest.json", .bytes = 5, .sha256 = std::string(64, '0')}};
    const std::string tar = TarName(record);
    EXPECT_TRUE(WriteSmallFile(fs_, dir_ / tar, "tar").ok());
    EXPECT_TRUE(WriteSmallFile(fs_, dir_ / (tar + ".json"), EncodeRecord(record)).ok());
    return tar;
  }
  std::vector<LedgerMember> Synced() {
    auto ledger = Ledger::Open({fs_, dir_.path()});
    EXPECT_TRUE(ledger.ok()) << ledger.status().message();
    EXPECT_TRUE(ledger->Sync().ok());
    return ledger->Members().value();
  }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir dir_;
};

TEST_F(LedgerTest, FollowsTheStore) {
  EXPECT_TRUE(Synced().empty());
  const std::string tar = Put(40);
  ASSERT_EQ(Synced().size(), 1u);
  EXPECT_EQ(Synced()[0].member.state, MemberState::kVerified);
  EXPECT_EQ(Synced()[0].member.record->step, 40);
  std::ofstream(dir_ / tar) << "longer than it was";
  EXPECT_EQ(Synced()[0].member.state, MemberState::kDamaged);
  std::filesystem::remove(dir_ / tar);
  std::filesystem::remove(dir_ / (tar + ".json"));
  EXPECT_TRUE(Synced().empty());
}

TEST_F(LedgerTest, ReadsNoSidecarTwice) {
  const std::string tar = Put(40);
  (void)Synced();
  const auto time = std::filesystem::last_write_time(dir_ / (tar + ".json"));
  const auto size = std::filesystem::file_size(dir_ / (tar + ".json"));
  std::ofstream(dir_ / (tar + ".json")) << std::string(size, 'x');  // a reader would call it damaged
  std::filesystem::last_write_time(dir_ / (tar + ".json"), time);
  EXPECT_EQ(Synced()[0].member.state, MemberState::kVerified);
  auto ledger = Ledger::Open({fs_, dir_.path()});
  ASSERT_TRUE(ledger->Sync(/*all=*/true).ok());
  EXPECT_EQ(ledger->Members()->front().member.state, MemberState::kDamaged);
}

TEST_F(LedgerTest, KeepsScrubsAndSources) {
  const std::string tar = Put(40);
  (void)Synced();
  {
    auto ledger = Ledger::Open({fs_, dir_.path()});
    ASSERT_TRUE(ledger->SetScrub(tar, {77, "a bit"}).ok());
    ASSERT_TRUE(ledger->NoteSource({"/s", "gpt", 50, 9}).ok());
  }
  EXPECT_EQ(Synced()[0].scrub.unix_seconds, 77);
  EXPECT_EQ(StateText(fs_, Synced()[0]), "damaged");
  EXPECT_EQ(Ledger::Open({fs_, dir_.path()})->Sources()->front().step, 50);
}

TEST_F(LedgerTest, AClaimHidesNoDamageThatWasFound) {
  const std::string tar = Put(40);
  (void)Synced();
  ASSERT_TRUE(Ledger::Open({fs_, dir_.path()})->SetScrub(tar, {77, "a bit"}).ok());
  ASSERT_TRUE(AddClaim({fs_, dir_.path()}, {tar}, "weekly").ok());
  ASSERT_EQ(Synced()[0].member.record->claims, (std::vector<std::string>{"unknown", "weekly"}));
  EXPECT_EQ(Synced()[0].scrub.trouble, "a bit");
  std::ofstream(dir_ / tar) << "x y";  // other bytes, another time
  std::filesystem::last_write_time(dir_ / tar,
                                   std::filesystem::last_write_time(dir_ / tar) + std::chrono::hours(1));
  EXPECT_EQ(Synced()[0].scrub.trouble, "");
}

TEST_F(LedgerTest, IsMadeAnewWhereItIsMissingDamagedOrOfAnotherVersion) {
  Put(40);
  (void)Synced();
  const std::string path = dir_ / "ledger.sqlite";
  std::filesystem::remove(path);
  EXPECT_EQ(Synced().size(), 1u);
  for (const std::string& text : {std::string("not a database, and long enough to be looked at as one....."),
                                  std::string(8192, '\0')}) {
    for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path + suffix);
    std::ofstream(path) << text;
    EXPECT_EQ(Synced().size(), 1u);
  }
}

}  // namespace
}  // namespace cairn
