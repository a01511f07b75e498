#include "runtime/snapshot/snapshot_window.h"

#include <gtest/gtest.h>

#include "ckpt/io/file_system.h"

namespace cairn {
namespace {

const std::byte* const kSource = reinterpret_cast<const std::byte*>(uintptr_t{1} << 32);  // never read

TEST(SnapshotWindowTest, NeighboursShareACopyAndAGapEndsIt) {
  const std::vector<SnapshotPiece> pieces{
      {kSource, 100, 0, 7}, {kSource, 0, 4096, 8}, {kSource, 5000, 4096, 9}, {kSource, 4096, 16384, 10}};
  ASSERT_TRUE(CheckPieces(pieces, 20480).ok());
  WindowCutter cutter(pieces, kChunkBytes);
  const SnapshotWindow window = cutter.Next();
  EXPECT_TRUE(cutter.done());
  EXPECT_EQ(window.pieces, (std::vector<uint32_t>{0, 2, 3}));
  EXPECT_EQ(window.chunk_of_page, (std::vector<uint32_t>{0, 1, 1, 2}));
  ASSERT_EQ(window.runs.size(), 2u);
  EXPECT_EQ(window.runs[0].bytes, 3 * kPageBytes);
  EXPECT_EQ(window.runs[1].staged, 3 * kPageBytes);
  EXPECT_EQ(window.runs[1].arena_offset, 16384u);
  EXPECT_EQ(window.runs[1].bytes, kPageBytes);
}

TEST(SnapshotWindowTest, APieceLargerThanASlotIsCutAtChunksAndItsSeedsCountUp) {
  const std::vector<SnapshotPiece> pieces{{kSource, 5 * kChunkBytes + 3, 0, ~uint64_t{0}}};
  WindowCutter cutter(pieces, 2 * kChunkBytes + kPageBytes);
  std::vector<uint64_t> seeds, bytes;
  while (!cutter.done()) {
    const SnapshotWindow window = cutter.Next();
    EXPECT_EQ(window.runs.size(), 1u);
    for (const SnapshotChunk& chunk : window.chunks) {
      EXPECT_EQ(chunk.source, kSource + seeds.size() * kChunkBytes);
      seeds.push_back(chunk.seed);
      bytes.push_back(chunk.bytes);
    }
  }
  EXPECT_EQ(seeds, (std::vector<uint64_t>{~uint64_t{0}, 0, 1, 2, 3, 4}));
  EXPECT_EQ(bytes,
            (std::vector<uint64_t>{kChunkBytes, kChunkBytes, kChunkBytes, kChunkBytes, kChunkBytes, 3}));
}

TEST(SnapshotWindowTest, RefusesPiecesThatDoNotFit) {
  const auto refused = [](std::vector<SnapshotPiece> pieces, uint64_t arena_bytes, const std::string& why) {
    const Status status = CheckPieces(pieces, arena_bytes);
    EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  };
  refused({{nullptr, 1, 0, 0}}, 8192, "no source");
  refused({{kSource, 1, 100, 0}}, 8192, "not a multiple");
  refused({{kSource, 4097, 0, 0}, {kSource, 1, 4096, 0}}, 16384, "piece 1, 1 bytes to arena offset 4096");
  refused({{kSource, 1, 4096, 0}, {kSource, 1, 0, 0}}, 16384, "after the previous piece");
  refused({{kSource, 1, 0, 0}}, 4095, "only 4095 bytes");  // no room for the padding
  refused({{kSource, 1, uint64_t{1} << 63, 0}}, 8192, "only 8192 bytes");
  refused({{kSource, ~uint64_t{0}, 4096, 0}}, 8192, "only 8192 bytes");
}

}  // namespace
}  // namespace cairn
