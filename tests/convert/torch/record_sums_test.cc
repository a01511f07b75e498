#include "convert/torch/record_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace cairn {
namespace {

using testing::HasSubstr;

class RecordSumsTest : public testing::Test {
 protected:
  RecordSumsTest() : file_(40'000) {
    for (std::byte& byte : file_) byte = static_cast<std::byte>(rng_());
  }
  SummedRecord Record(uint64_t offset, uint64_t bytes) const {
    return {1, {"data/0", offset, bytes, Crc32(std::span(file_).subspan(offset, bytes))}};
  }
  void Add(RecordSums& sums, uint64_t begin, uint64_t end) {
    sums.Add(1, begin, std::span(file_).subspan(begin, end - begin));
  }
  void AddGaps(RecordSums& sums) {
    for (const RecordSums::Gap& gap : sums.Gaps()) Add(sums, gap.where.begin, gap.where.end);
  }

  std::mt19937 rng_{5};
  std::vector<std::byte> file_;
  const std::vector<std::string> names_ = {"other", "file.pt"};
};

// Ranges that overlap each other, other records and the gaps between them, in any order.
TEST_F(RecordSumsTest, SumsReadsInAnyOrderAndOverlap) {
  for (int round = 0; round < 200; ++round) {
    RecordSums sums({Record(64, 10'000), Record(20'000, 1), Record(20'001, 15'000)});
    for (int i = static_cast<int>(rng_() % 20); i >= 0; --i) {
      const uint64_t begin = rng_() % file_.size(), bytes = rng_() % (i % 2 == 0 ? 100 : 20'000);
      Add(sums, begin, std::min(begin + bytes, file_.size()));
    }
    AddGaps(sums);
    EXPECT_TRUE(sums.Gaps().empty());
    const Status status = sums.Check(names_);
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

TEST_F(RecordSumsTest, NamesARecordWithAFlippedBit) {
  for (const uint64_t at : {64, 5'000, 10'063}) {
    RecordSums sums({Record(64, 10'000), Record(20'000, 100)});
    file_[at] ^= std::byte{4};
    Add(sums, 1'000, 2'000);
    AddGaps(sums);
    const Status status = sums.Check(names_);
    EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr("file.pt at byte 64: record data/0 of 10000 bytes"));
    file_[at] ^= std::byte{4};
  }
}

// Records that were not read are not judged.
TEST_F(RecordSumsTest, IgnoresUnreadRecords) {
  SummedRecord damaged = Record(20'000, 100), unsummed = Record(30'000, 100);
  damaged.record.crc ^= 1;
  unsummed.record.crc = 0;
  RecordSums sums({Record(64, 10'000), damaged, unsummed});
  Add(sums, 64, 10'064);
  Add(sums, 30'000, 30'050);
  EXPECT_TRUE(sums.Gaps().empty());
  EXPECT_TRUE(sums.Check(names_).ok());
  Add(sums, 20'010, 20'011);
  AddGaps(sums);
  EXPECT_FALSE(sums.Check(names_).ok());
}

}  // namespace
}  // namespace cairn
