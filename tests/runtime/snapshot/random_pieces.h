// Pieces like a shard's, of random sizes, gaps and alignments, over random bytes.
#pragma once

#include <random>
#include <vector>

#include "ckpt/io/file_system.h"
#include "runtime/snapshot/device_snapshot.h"

namespace cairn {

inline std::vector<std::byte> RandomBytes(uint64_t bytes, std::mt19937_64& random) {
  std::vector<std::byte> data(bytes);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  return data;
}

struct RandomPieces {
  std::vector<SnapshotPiece> pieces;  // sources are offsets into `data`: add its address, on host or device
  std::vector<std::byte> data;
  uint64_t arena_bytes = 0;

  std::vector<SnapshotPiece> At(const std::byte* base) const {
    std::vector<SnapshotPiece> placed = pieces;
    for (SnapshotPiece& piece : placed) piece.source = base + reinterpret_cast<uintptr_t>(piece.source);
    return placed;
  }
};

// A size that is likely to be at or near an edge: of XXH3's short inputs, stripes and blocks, pages,
// chunks.
inline uint64_t RandomSize(uint64_t largest, std::mt19937_64& random) {
  constexpr uint64_t kEdges[] = {0, 1, 16, 240, 64, 1024, 2048, kPageBytes, 3 * kPageBytes, kChunkBytes};
  const uint64_t edge = kEdges[random() % std::size(kEdges)], off = random() % 4;
  const uint64_t size = random() % 3 == 0 ? random() % 40000 : edge + off < 2 ? 0 : edge + off - 2;
  return std::min(size, largest);
}

// `count` pieces that together fill at most `total` bytes of source.
inline RandomPieces MakeRandomPieces(int count, uint64_t total, std::mt19937_64& random) {
  RandomPieces made;
  uint64_t source = 0, offset = 0;
  for (int i = 0; i < count; ++i) {
    source += random() % 33;
    offset += random() % 3 == 0 ? random() % 3 * kPageBytes : 0;
    const uint64_t bytes = source < total ? RandomSize(total - source, random) : 0;
    made.pieces.push_back({reinterpret_cast<const std::byte*>(source), bytes, offset, random()});
    source += bytes;
    offset += (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  }
  made.data = RandomBytes(source, random);
  made.arena_bytes = offset + random() % 2 * kPageBytes;
  return made;
}

}  // namespace cairn
