#include "tools/archive/store/ledger.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

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
  CheckedMember Listed() { return ListChecked({fs_, dir_.path()})->at(0); }
  void SetScrub(const Scrub& scrub) {
    ASSERT_TRUE(Ledger::Open({fs_, dir_.path()})->SetScrub(*Listed().member.record, scrub).ok());
  }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir dir_;
};

TEST_F(LedgerTest, KeepsChecksAndSources) {
  Put(40);
  EXPECT_EQ(Listed().scrub.unix_seconds, 0);
  SetScrub({77, "a bit"});
  ASSERT_TRUE(Ledger::Open({fs_, dir_.path()})->NoteSource({"/s", "gpt", 50, 9}).ok());
  EXPECT_EQ(Listed().scrub.unix_seconds, 77);
  EXPECT_EQ(StateText(fs_, Listed()), "damaged");
  EXPECT_TRUE(ListSound({fs_, dir_.path()})->empty());
  EXPECT_EQ(Ledger::Open({fs_, dir_.path()})->Sources()->front().step, 50);
}

TEST_F(LedgerTest, AClaimHidesNoDamage) {
  const std::string tar = Put(40);
  SetScrub({77, "a bit"});
  ASSERT_TRUE(AddClaim({fs_, dir_.path()}, {tar}, "weekly").ok());
  ASSERT_EQ(Listed().member.record->claims, (std::vector<std::string>{"unknown", "weekly"}));
  EXPECT_EQ(Listed().scrub.trouble, "a bit");
  std::ofstream(dir_ / tar) << "x y";  // other bytes, another time
  std::filesystem::last_write_time(dir_ / tar,
                                   std::filesystem::last_write_time(dir_ / tar) + std::chrono::hours(1));
  EXPECT_EQ(Listed().scrub.trouble, "");
}

TEST_F(LedgerTest, AFailedCheckCountsUntilTheMemberIsProven) {
  Put(40);
  SetScrub({77, "a bit"});
  ArchiveRecord record = *Listed().member.record;
  for (const int64_t proven : {77, 78}) {
    record.verified_unix_seconds = proven;
    ASSERT_TRUE(WriteRecord({fs_, dir_.path()}, record).ok());
    EXPECT_EQ(Listed().scrub.trouble, proven == 77 ? "a bit" : "");
  }
}

TEST_F(LedgerTest, ImportsTheChecksOfVersion1) {
  const std::string tar = Put(40);
  const std::string path = dir_ / "ledger.sqlite";
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  const std::string text =
      "CREATE TABLE members(tar TEXT PRIMARY KEY, stamp TEXT, run TEXT, step INTEGER, form INTEGER, "
      "bytes INTEGER, state INTEGER, trouble TEXT, record TEXT, scrubbed INTEGER DEFAULT 0, "
      "scrub TEXT DEFAULT '');"
      "CREATE TABLE sources(path TEXT PRIMARY KEY, run TEXT, step INTEGER, bytes INTEGER, digest TEXT, "
      "state TEXT);"
      "INSERT INTO members(tar, scrubbed, scrub) VALUES('" +
      tar +
      "', 77, 'a bit'), ('other', 0, '');"
      "INSERT INTO sources VALUES('/s', 'gpt', 50, 9, '', 'scratch only'); PRAGMA user_version=1;";
  ASSERT_EQ(sqlite3_exec(db, text.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Listed().scrub.trouble, "a bit");
    EXPECT_EQ(Ledger::Open({fs_, dir_.path()})->Sources()->front().step, 50);
  }
}

TEST_F(LedgerTest, IsRebuiltIfMissingDamagedOrOfAnotherVersion) {
  Put(40);
  const std::string path = dir_ / "ledger.sqlite";
  SetScrub({77, ""});
  std::filesystem::remove(path);
  EXPECT_EQ(Listed().scrub.unix_seconds, 0);
  for (const std::string& text : {std::string("not a database, and long enough to be looked at as one....."),
                                  std::string(8192, '\0')}) {
    for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path + suffix);
    std::ofstream(path) << text;
    EXPECT_EQ(Listed().scrub.unix_seconds, 0);
    SetScrub({77, ""});
    EXPECT_EQ(Listed().scrub.unix_seconds, 77);
  }
}

}  // namespace
}  // namespace cairn
