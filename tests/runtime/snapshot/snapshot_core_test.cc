#include "runtime/snapshot/snapshot_core.h"

#include <gtest/gtest.h>

#include "tests/runtime/snapshot/host_snapshot.h"
#include "tests/runtime/snapshot/random_pieces.h"
#include "tests/runtime/snapshot/snapshot_twin.h"

namespace cairn {
namespace {

// Exactly as large as declared, so that a sanitizer sees every byte read past it. `shift`: of its address.
class Source {
 public:
  Source(uint64_t bytes, uint64_t shift, std::mt19937_64& random)
      : data_(RandomBytes(shift + bytes, random)), bytes_(data_.data() + shift, bytes) {}
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> data_;
  std::span<const std::byte> bytes_;
};

// Both kernels over a window of one chunk.
Digest TwinDigest(std::span<const std::byte> bytes, uint64_t seed, std::mt19937_64& random) {
  const std::vector<SnapshotPiece> piece{{bytes.data(), bytes.size(), 0, seed}};
  std::vector<std::byte> arena(bytes.size() + kPageBytes);
  return TwinSnapshot(piece, arena, kChunkBytes, random())[0].at(0);
}

TEST(SnapshotCoreTest, DigestsAreXxh3) {
  std::mt19937_64 random(1);
  const auto check = [&](uint64_t length) {
    const Source source(length, random() % 17, random);
    const uint64_t seed = random() % 4 == 0 ? random() % 3 : random();
    EXPECT_EQ(ToHex(TwinDigest(source.bytes(), seed, random)), ToHex(DigestOf(source.bytes(), seed)))
        << length << " bytes, seed " << seed;
  };
  for (uint64_t length = 1; length < 2200; length += 1 + random() % 3) check(length);
  for (const uint64_t block : {4u, 15u, 16u, 17u, 33u, 64u})  // the chain loads 16 blocks ahead
    for (const int off : {-65, -64, -63, -1, 0, 1, 63, 64, 65}) check(block * xxh3::kBlockBytes + off);
  for (int round = 0; round < 100; ++round) check(1 + random() % 100000);
  for (const uint64_t off : {0u, 1u, 63u, 64u, 1023u, 1024u}) check(kChunkBytes - off);
}

TEST(SnapshotCoreTest, ASeedChangesEveryDigest) {
  std::mt19937_64 random(2);
  const Source source(5000, 0, random);
  EXPECT_NE(TwinDigest(source.bytes(), 0, random), TwinDigest(source.bytes(), 1, random));
}

TEST(SnapshotCoreTest, LoadsUnitsAtAnyAlignmentWithZerosPastTheEnd) {
  std::mt19937_64 random(3);
  for (uint64_t shift = 0; shift < 16; ++shift) {
    for (uint64_t bytes = 1; bytes < 70; ++bytes) {
      const Source source(bytes, shift, random);
      for (uint64_t at = 0; at < 96; at += 16) {
        std::byte expected[16] = {};
        if (at < bytes)
          std::copy_n(source.bytes().begin() + at, std::min<uint64_t>(16, bytes - at), expected);
        std::byte loaded[16];
        StoreAligned(loaded, LoadUnit(source.bytes().data(), bytes, at));
        ASSERT_TRUE(std::equal(loaded, loaded + 16, expected))
            << "shift " << shift << " of " << bytes << " at " << at;
      }
    }
  }
}

// Against memcpy, as HostSnapshot does it: the same arena, the same digests, gaps left alone.
TEST(SnapshotCoreTest, PacksLikeMemcpyAndDigestsLikeXxh3) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 60; ++round) {
    const RandomPieces made =
        MakeRandomPieces(1 + random() % 40, round % 10 == 0 ? 12 << 20 : 300000, random);
    const std::vector<SnapshotPiece> pieces = made.At(made.data.data());
    std::vector<std::byte> expected(made.arena_bytes, kGarbage), arena = expected;
    const auto host = NewHostSnapshot();
    ASSERT_TRUE(host->SetArena(expected).ok());
    ASSERT_TRUE(host->Begin(pieces).ok());
    const uint64_t slot_bytes = kChunkBytes + random() % 5 * kPageBytes;
    EXPECT_EQ(TwinSnapshot(pieces, arena, slot_bytes, random()), host->Wait().value()) << "round " << round;
    EXPECT_TRUE(arena == expected) << "round " << round;
  }
}

}  // namespace
}  // namespace cairn
