#include "tools/archive/store/store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/support/temp_dir.h"
#include "tests/support/wrapped_file_system.h"

namespace cairn {
namespace {

ArchiveRecord Record(std::string name, int64_t step, char digit = 'a') {
  return {.name = std::move(name),
          .run = "0123456789abcdef0123456789abcdef",
          .step = step,
          .directory = "gpt/step-00000040",
          .tokens = 7,
          .manifest_digest = std::string(32, digit),
          .source = "/scratch/gpt",
          .tar_bytes = 3,
          .verified_unix_seconds = 1,
          .files = {{"manifest.json", 5, std::string(64, '0')}}};
}

TEST(ArchiveRecordTest, RoundTrips) {
  const ArchiveRecord record = Record("gpt", 40);
  const auto decoded = DecodeRecord(EncodeRecord(record));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(*decoded, record);
}

TEST(ArchiveRecordTest, ASourceNameMayHaveAnyBytes) {
  ArchiveRecord record = Record("gpt", 40);
  record.source = "/scratch/\\gp\xff";
  const auto decoded = DecodeRecord(EncodeRecord(record));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(*decoded, record);
}

TEST(ArchiveRecordTest, DetectsEveryFlippedByte) {
  const std::string text = EncodeRecord(Record("gpt", 40));
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] ^= 1;
    EXPECT_FALSE(DecodeRecord(damaged).ok()) << i;
  }
  EXPECT_EQ(DecodeRecord("{}").status().kind(), StatusKind::kCorrupt);
  EXPECT_EQ(DecodeRecord(R"({"format": "cairn-archive", "version": 9})").status().kind(),
            StatusKind::kNotSupported);
}

TEST(ArchiveRecordTest, TarNamesHaveRunAndStep) {
  EXPECT_EQ(TarName(Record("gpt-step-2", 40)), "gpt-step-2-step-00000040.aaaaaaaa.tar");
  EXPECT_EQ(ParseTarName("gpt-step-2-step-00000040.aaaaaaaa.tar"),
            (TarNameParts{"gpt-step-2", 40, Form::kFull}));
  ArchiveRecord weights = Record("gpt", 40);
  weights.form = Form::kWeights;
  EXPECT_EQ(ParseTarName(TarName(weights)), (TarNameParts{"gpt", 40, Form::kWeights}));
  for (const char* name :
       {"x.tar", "gpt-step-40.aaaaaaaa.tar", "gpt-step-00000040.tar", "-step-00000040.aaaaaaaa.tar",
        "gpt-step-00000040.aaaaaaaa.tar.json", "gpt-step-00000040.aaaaaaaa.tar.partial"})
    EXPECT_EQ(ParseTarName(name), std::nullopt) << name;
}

class ArchiveStoreTest : public testing::Test {
 protected:
  void Put(const ArchiveRecord& record) {
    const std::string tar = dir_ / TarName(record);
    ASSERT_TRUE(WriteSmallFile(fs_, tar, "tar").ok());
    ASSERT_TRUE(WriteSmallFile(fs_, tar + ".json", EncodeRecord(record)).ok());
  }
  Result<ArchiveMember> Find(const std::string& selector) { return FindMember({fs_, dir_.path()}, selector); }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir dir_;
};

TEST_F(ArchiveStoreTest, SelectorsNameRunAndStep) {
  EXPECT_EQ(Find("").status().kind(), StatusKind::kNotFound);
  Put(Record("gpt", 20));
  Put(Record("gpt", 40));
  EXPECT_EQ(Find("")->step, 40);
  EXPECT_EQ(Find("gpt")->step, 40);
  EXPECT_EQ(Find("gpt@20")->step, 20);
  EXPECT_EQ(Find(TarName(Record("gpt", 20)))->step, 20);
  EXPECT_EQ(Find("gpt@30").status().kind(), StatusKind::kNotFound);
  EXPECT_EQ(Find("gpt@x").status().kind(), StatusKind::kInvalidArgument);
  ArchiveRecord other = Record("other", 60);
  other.run = std::string(32, 'f');
  Put(other);
  EXPECT_EQ(Find("").status().kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(Find("other@60")->step, 60);
}

TEST_F(ArchiveStoreTest, IdentitiesDistinguishRunsOfOneName) {
  ArchiveRecord other = Record("gpt", 20, 'b');
  other.run = "0123ffff" + std::string(24, '0');
  other.source = "/elsewhere/gpt";
  Put(Record("gpt", 20));
  Put(other);
  Put(Record("gpt", 40));
  const auto several = Find("gpt@20");
  EXPECT_EQ(several.status().kind(), StatusKind::kInvalidArgument);
  for (const char* part : {"several runs", "gpt~01234@20", "gpt~0123f@20", "from /elsewhere/gpt"})
    EXPECT_NE(several.status().message().find(part), std::string::npos) << several.status().message();
  EXPECT_EQ(Find("gpt").status().kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(Find("gpt~0123f@20")->record->source, "/elsewhere/gpt");
  EXPECT_EQ(Find("0123f")->record->source, "/elsewhere/gpt");
  EXPECT_EQ(Find("gpt~01234")->step, 40);
  EXPECT_EQ(Find("gpt~0123").status().kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(Find("gpt~ffff@20").status().kind(), StatusKind::kNotFound);
  Put(Record("renamed", 60));  // of the same identity as gpt~01234
  EXPECT_EQ(Find("01234")->step, 60);
}

TEST_F(ArchiveStoreTest, ClaimsAndHealthRoundTripThroughSidecars) {
  ArchiveRecord record = Record("gpt", 20);
  const std::string plain = EncodeRecord(record);
  EXPECT_NE(plain.find("\"version\": 2"), std::string::npos) << plain;  // as older programs read it
  record.claims = {"daily", "weekly"};
  record.healthy = false;
  const auto decoded = DecodeRecord(EncodeRecord(record));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(*decoded, record);
}

TEST_F(ArchiveStoreTest, TarNamesDistinguishTwoSavesOfOneStep) {
  Put(Record("gpt", 20, 'a'));
  Put(Record("gpt", 20, 'b'));
  EXPECT_EQ(Find("gpt@20").status().kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(Find(TarName(Record("gpt", 20, 'b')))->tar, TarName(Record("gpt", 20, 'b')));
}

TEST_F(ArchiveStoreTest, ReportsStatesFromSidecarAndTar) {
  const ArchiveRecord record = Record("gpt", 20);
  const std::string tar = dir_ / TarName(record);
  const auto state = [&] { return ListStore({fs_, dir_.path()})->front().state; };
  Put(record);
  EXPECT_EQ(state(), MemberState::kVerified);
  ASSERT_TRUE(fs_.RemoveFile(tar + ".json").ok());
  EXPECT_EQ(state(), MemberState::kStored);
  ASSERT_TRUE(fs_.RemoveFile(tar).ok());
  ASSERT_TRUE(WriteSmallFile(fs_, tar + ".json", EncodeRecord(record)).ok());
  EXPECT_EQ(state(), MemberState::kDamaged);
  ASSERT_TRUE(WriteSmallFile(fs_, tar, "cut and longer").ok());
  EXPECT_EQ(state(), MemberState::kDamaged);
}

TEST_F(ArchiveStoreTest, OnlyOneProcessWrites) {
  const auto lock = LockStore({fs_, dir_.path()});
  ASSERT_TRUE(lock.ok());
  const Status refused = LockStore({fs_, dir_.path()}).status();
  EXPECT_EQ(refused.kind(), StatusKind::kAlreadyExists);
  EXPECT_NE(refused.message().find(fmt::format(": pid {} on ", ::getpid())), std::string::npos)
      << refused.message();
}

TEST_F(ArchiveStoreTest, AReaderDoesNotBlockAWriter) {
  const Store store(fs_, dir_.path());
  EXPECT_FALSE(IsBusy(store));
  EXPECT_TRUE(store.List()->empty());
  {
    const auto lock = LockStore(store);
    EXPECT_TRUE(IsBusy(store));
  }
  std::atomic<bool> done = false;
  std::thread reader([&] {
    while (!done) (void)IsBusy(store);
  });
  for (int i = 0; i < 500; ++i) EXPECT_TRUE(LockStore(store).ok()) << i;
  done = true;
  reader.join();
  EXPECT_FALSE(IsBusy(store));
}

TEST_F(ArchiveStoreTest, FilesForUsersAreDurable) {
  struct Journal final : WrappedFileSystem {
    using WrappedFileSystem::WrappedFileSystem;
    std::string calls;
    Status Do(const FsCall& call, const std::function<Status()>& run) override {
      if (call.kind == FsCall::Kind::kRename) calls += "rename ";
      if (call.kind == FsCall::Kind::kSyncDir) calls += "sync ";
      return run();
    }
  };
  Journal journal(fs_);
  ASSERT_TRUE(WriteStoreReadme({journal, dir_.path()}).ok());
  EXPECT_EQ(journal.calls, "rename sync rename sync ");
  ASSERT_TRUE(WriteStoreReadme({journal, dir_.path()}).ok());  // already stored
  EXPECT_EQ(journal.calls, "rename sync rename sync ");
}

}  // namespace
}  // namespace cairn
