#include "runtime/snapshot/device_snapshot.h"

#include <gtest/gtest.h>

#include "tests/runtime/snapshot/host_snapshot.h"
#include "tests/runtime/snapshot/random_pieces.h"

namespace cairn {
namespace {

TEST(DeviceSnapshotTest, HostSnapshotHasBytesZerosAndDigestsOfEachPiece) {
  std::mt19937_64 random(1);
  const std::vector<std::byte> source = RandomBytes(kChunkBytes + 10, random);
  std::vector<std::byte> arena(kChunkBytes + 4 * kPageBytes, std::byte{1});
  const auto snapshot = NewHostSnapshot();
  ASSERT_TRUE(snapshot->SetArena(arena).ok());
  ASSERT_TRUE(snapshot
                  ->Begin({{source.data(), source.size(), kPageBytes, 5},
                           {source.data(), 3, 3 * kPageBytes + kChunkBytes, 6}})
                  .ok());
  ASSERT_TRUE(snapshot->FenceSources().ok());
  const auto digests = snapshot->Wait();
  ASSERT_TRUE(digests.ok()) << digests.status().message();
  const auto bytes = std::span(source);
  EXPECT_EQ(*digests,
            (SnapshotDigests{{DigestOf(bytes.first(kChunkBytes), 5), DigestOf(bytes.subspan(kChunkBytes), 6)},
                             {DigestOf(bytes.first(3), 6)}}));
  EXPECT_EQ(arena[kPageBytes - 1], std::byte{1});
  EXPECT_TRUE(std::equal(source.begin(), source.end(), arena.begin() + kPageBytes));
  EXPECT_EQ(arena[kPageBytes + source.size()], std::byte{0});
  EXPECT_EQ(arena[2 * kPageBytes + kChunkBytes - 1], std::byte{0});
  EXPECT_EQ(arena[2 * kPageBytes + kChunkBytes], std::byte{1});
}

TEST(DeviceSnapshotTest, OneSnapshotAtATime) {
  std::vector<std::byte> arena(kPageBytes);
  const auto snapshot = NewHostSnapshot();
  EXPECT_EQ(snapshot->Wait().status().kind(), StatusKind::kInvalidArgument);
  ASSERT_TRUE(snapshot->SetArena(arena).ok());
  ASSERT_TRUE(snapshot->Begin({}).ok());
  EXPECT_EQ(snapshot->Begin({}).kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(snapshot->Wait().value(), SnapshotDigests{});
  EXPECT_TRUE(snapshot->Begin({}).ok());
}

}  // namespace
}  // namespace cairn
