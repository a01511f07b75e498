// The sources from which a damaged member is repaired. Until then it does not count as stored.
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "ckpt/model/layout.h"
#include "tests/support/file_bytes.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"
#include "tools/archive/bundle/scrub.h"
#include "tools/archive/store/archiver.h"
#include "tools/archive/store/ledger.h"
#include "tools/archive/store/leftovers.h"
#include "tools/archive/tar/tar_parity.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

class RepairTest : public testing::Test {
 protected:
  RepairTest() {
    EXPECT_TRUE(MakeStep(FileSystem::Posix(), dir_ / "gpt", RecipeOf({.layers = 1}, {})).ok());
    EXPECT_TRUE(MakeDirs(FileSystem::Posix(), store_.directory()).ok());
  }

  ArchiveOutcome Run(bool weights) {
    const auto outcome = Archive(store_, {{source_}, weights, false}, {}, {});
    EXPECT_TRUE(outcome.ok()) << outcome.status().message();
    return outcome.ok() ? *outcome : ArchiveOutcome{};
  }

  ArchiveMember Damage(const ArchiveRecord& record) {
    const std::string path = store_.Path(TarName(record));
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(record.files.back().offset + 100));
    file << "damage";
    file.close();
    const ArchiveMember member = DescribeTar({store_, TarName(record)});
    EXPECT_FALSE(VerifyMember(store_, member).problems.empty());
    return member;
  }

  void ExpectRepaired(const ArchiveMember& member, const std::string& from) {
    const auto how = RepairMember(store_, member);
    ASSERT_TRUE(how.ok()) << how.status().message();
    EXPECT_EQ(*how, "stored again from " + from);
    EXPECT_TRUE(VerifyMember(store_, DescribeTar({store_, member.tar})).problems.empty());
  }

  TempDir dir_{TempDir::Place::kMemory};
  const std::string source_ = dir_ / "gpt/step-00000100";
  const Store store_{FileSystem::Posix(), dir_ / "store"};
};

TEST_F(RepairTest, RepairsWeightsFromTheirStep) {
  const ArchiveMember weights = Damage(Run(/*weights=*/true).record);
  ExpectRepaired(weights, source_);
}

TEST_F(RepairTest, RepairsWeightsFromTheFullCopyInTheStore) {
  const ArchiveRecord full = Run(/*weights=*/false).record;
  const ArchiveMember weights = Damage(Run(/*weights=*/true).record);
  stdfs::remove_all(dir_ / "gpt");
  ExpectRepaired(weights, TarName(full));
  EXPECT_EQ(DescribeTar({store_, weights.tar}).record->source, source_);
}

TEST_F(RepairTest, DoesNotRepairWeightsWithoutAStep) {
  const ArchiveMember weights = Damage(Run(/*weights=*/true).record);
  stdfs::remove_all(dir_ / "gpt");
  StepRecipe other = RecipeOf({.layers = 1}, {});
  other.seed = 2;
  ASSERT_TRUE(MakeStep(FileSystem::Posix(), dir_ / "gpt", other).ok());
  EXPECT_EQ(RepairMember(store_, weights).status().kind(), StatusKind::kCorrupt);
  EXPECT_EQ(ListStore(store_)->size(), 1u);
}

TEST_F(RepairTest, ARepairedMemberKeepsItsParity) {
  for (const double share : {0.01, 0.05}) {
    const auto stored = Archive(store_, {{source_}}, {.parity = share}, {});
    ASSERT_TRUE(stored.ok()) << stored.status().message();
    const ArchiveRecord& record = stored->record;
    const std::string tar = store_.Path(TarName(record)), parity = BytesOf(store_.Parity(TarName(record)));
    stdfs::resize_file(tar, 4096);
    std::fstream damaged(store_.Parity(TarName(record)), std::ios::in | std::ios::out | std::ios::binary);
    damaged.seekp(-2 * static_cast<std::streamoff>(kParityBlockBytes), std::ios::end);
    damaged << std::string(2 * kParityBlockBytes, 'x');  // all of a stripe that needs it
    damaged.close();
    ExpectRepaired(DescribeTar({store_, TarName(record)}), source_);
    EXPECT_TRUE(BytesOf(store_.Parity(TarName(record))) == parity) << share;
    ASSERT_TRUE(RemoveMember(store_, TarName(record)).ok());
  }
}

TEST_F(RepairTest, StoresADamagedMemberAgain) {
  for (const bool weights : {false, true}) {
    const ArchiveRecord record = Run(weights).record;
    EXPECT_FALSE(Run(weights).stored);
    const ArchiveMember member = Damage(record);
    auto ledger = Ledger::Open(store_);
    ASSERT_TRUE(ledger.ok());
    ASSERT_TRUE(ledger->SetScrub(record, {std::time(nullptr), "damaged"}).ok());
    EXPECT_TRUE(Run(weights).stored);
    EXPECT_FALSE(Run(weights).stored);
    EXPECT_TRUE(VerifyMember(store_, DescribeTar({store_, member.tar})).problems.empty());
  }
}

}  // namespace
}  // namespace cairn
