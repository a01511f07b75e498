#include "ckpt/step/parity_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <random>

#include "ckpt/model/layout.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

const StepIdentity kParityIdentity{"0123456789abcdef0123456789abcdef", 20};

// A group whose files all lie in one directory, and which of them count as present.
class Group {
 public:
  Group(int parity, const std::vector<uint64_t>& pages, uint32_t seed) : lost_(pages.size()) {
    std::mt19937 random(seed);
    std::vector<ParityGroup::Member> members;
    for (size_t i = 0; i < pages.size(); ++i) {
      members.push_back({ShardName(static_cast<int>(i)), pages[i] * kPageBytes});
      std::string bytes(members[i].bytes, '\0');
      for (char& c : bytes) c = static_cast<char>(random());
      EXPECT_TRUE(WriteSmallFile(fs_, Shard(i), bytes).ok());
    }
    group_.emplace(ParityGroup::Make(kParityIdentity, std::move(members), parity).value());
    files_.has = [this](int member, bool is_parity) { return !lost_[member] && (!is_parity || encoded_); };
    files_.read = [this](std::span<const MemberRead> reads) { return Read(reads); };
    for (size_t i = 0; i < pages.size(); ++i) {
      const Status status = WriteParity(fs_, Parity(i), *group_, static_cast<int>(i), files_);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    encoded_ = true;
  }

  void Lose(unsigned members) {
    for (size_t i = 0; i < lost_.size(); ++i) lost_[i] = members >> i & 1;
  }

  std::string Shard(size_t i) const { return dir_ / ShardName(static_cast<int>(i)); }
  std::string Parity(size_t i) const { return dir_ / ParityName(static_cast<int>(i)); }
  std::string Bytes(const std::string& path) { return ReadSmallFile(fs_, path, 1 << 30).value(); }
  const ParityGroup& group() const { return *group_; }
  const MemberFiles& files() const { return files_; }
  FileSystem& fs() { return fs_; }

  // Rebuilds all files of a lost member next to the existing ones, and compares.
  void ExpectRebuilt(int member) {
    const std::string path = dir_ / "rebuilt";
    Status status = RebuildShard(fs_, path, *group_, member, files_);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(Bytes(path) == Bytes(Shard(member))) << "shard of member " << member;
    ASSERT_TRUE(fs_.RemoveFile(path).ok());
    status = WriteParity(fs_, path, *group_, member, files_);
    ASSERT_EQ(status.ok(), CanRebuild(*group_, files_)) << status.message();
    ASSERT_TRUE(Bytes(path) == Bytes(Parity(member))) << "parity of member " << member;
    ASSERT_TRUE(fs_.RemoveFile(path).ok());
  }

 private:
  Status Read(std::span<const MemberRead> reads) {
    for (const MemberRead& read : reads) {
      EXPECT_TRUE(files_.has(read.member, read.parity));
      CAIRN_ASSIGN_OR_RETURN(const auto file,
                             fs_.OpenForRead(read.parity ? Parity(read.member) : Shard(read.member)));
      CAIRN_RETURN_IF_ERROR(file->ReadAt(read.offset, read.out));
    }
    return OkStatus();
  }

  TempDir dir_{TempDir::Place::kMemory};
  FileSystem& fs_ = FileSystem::Posix();
  std::optional<ParityGroup> group_;
  std::vector<bool> lost_;
  bool encoded_ = false;
  MemberFiles files_;
};

// Every loss of up to M members is rebuilt, and every larger loss is refused, for shards of unequal
// length.
TEST(ParityFile, RebuildsUpToTheNumberOfParityBlocks) {
  std::mt19937 random(7);
  for (const auto& [size, parity] : {std::pair(2, 1), {3, 1}, {4, 1}, {3, 2}, {4, 2}, {5, 3}, {6, 1}}) {
    std::vector<uint64_t> pages;
    for (int i = 0; i < size; ++i) pages.push_back(random() % 40);
    Group group(parity, pages, random());
    for (unsigned lost = 1; lost < 1U << size; ++lost) {
      SCOPED_TRACE(testing::Message() << size << " members, parity " << parity << ", lost " << lost);
      group.Lose(lost);
      const bool can = std::popcount(lost) <= parity;
      ASSERT_EQ(CanRebuild(group.group(), group.files()), can);
      for (int member = 0; member < size && can; ++member)
        if (lost >> member & 1) group.ExpectRebuilt(member);
    }
  }
}

TEST(ParityFile, LargeShardsHaveManyStripes) {
  Group group(2, {900, 1500, 1, 1537, 0}, 11);
  EXPECT_EQ(group.group().block_bytes(), 1U << 20);
  EXPECT_GT(group.group().stripes(), 5U);
  group.Lose(0b01010);
  group.ExpectRebuilt(1);
  group.ExpectRebuilt(3);
}

TEST(ParityFile, NamesTheShardsIfTooManyAreLost) {
  Group group(1, {5, 6, 7}, 3);
  group.Lose(0b110);
  const Status status = RebuildShard(group.fs(), group.Shard(9), group.group(), 1, group.files());
  EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
  EXPECT_NE(status.message().find("shard-00001.h5"), std::string::npos) << status.message();
}

// Each member stores the share M / (K - M) of its size.
TEST(ParityFile, TakesTheExpectedSpace) {
  Group group(1, {1024, 1024, 1024, 1024, 1024}, 5);
  EXPECT_EQ(group.group().parity_blocks() * group.group().block_bytes(), 1024 * kPageBytes / 4);
}

TEST(ParityFile, DetectsDamageAtEveryByte) {
  Group group(1, {3, 2, 3}, 9);
  const std::string path = group.Parity(1), whole = group.Bytes(path);
  const auto check = [&](const std::string& bytes) {
    EXPECT_TRUE(group.fs().RemoveFile(path).ok());
    EXPECT_TRUE(WriteSmallFile(group.fs(), path, bytes).ok());
    const Result<ParityHeader> header = ReadParityHeader(group.fs(), path);
    return header.ok() ? VerifyParity(group.fs(), path, *header) : header.status();
  };
  EXPECT_TRUE(check(whole).ok());
  const ParityHeader header = ReadParityHeader(group.fs(), path).value();
  EXPECT_EQ(header.member, 1);
  EXPECT_EQ(header.group.members(), group.group().members());
  EXPECT_EQ(header.group.identity().run, kParityIdentity.run);
  EXPECT_EQ(header.group.identity().step, kParityIdentity.step);
  for (size_t at = 0; at < whole.size(); at += at < 300 ? 1 : 997) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << at % 8));
    const Status status = check(flipped);
    ASSERT_FALSE(status.ok()) << "byte " << at;
    ASSERT_NE(status.message().find(path), std::string::npos) << status.message();
  }
  for (size_t bytes : {size_t{0}, size_t{35}, size_t{36}, whole.size() - 1})
    EXPECT_FALSE(check(whole.substr(0, bytes)).ok());
  EXPECT_FALSE(check(whole + '\0').ok());
}

TEST(Redundancy, ParsesTheFlagOrRefusesIt) {
  EXPECT_EQ(ParseRedundancy("").value().group, 0);
  EXPECT_EQ(ParseRedundancy("xor:4").value().group, 4);
  EXPECT_EQ(ParseRedundancy("xor:4").value().parity, 1);
  EXPECT_EQ(ParseRedundancy("rs:8,3").value().group, 8);
  EXPECT_EQ(ParseRedundancy("rs:8,3").value().parity, 3);
  for (const char* text : {"xor", "xor:", "xor:1", "xor:4,1", "xor:33", "rs:4", "rs:4,", "rs:4,0", "rs:4,4",
                           "rs:4,2x", "raid:4", ":4", "rs:-4,-5", "rs:99999999999,1"})
    EXPECT_EQ(ParseRedundancy(text).status().kind(), StatusKind::kInvalidArgument) << text;
}

}  // namespace
}  // namespace cairn
