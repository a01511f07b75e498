// The GPU's part of a snapshot on a CPU: the same functions, thread by thread, in an order that no GPU
// promises.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>

#include "runtime/snapshot/snapshot_window.h"

namespace cairn {

inline constexpr std::byte kGarbage{0xA5};  // fills memory before a snapshot; never an expected value

inline std::vector<uint64_t> Shuffled(uint64_t count, std::mt19937_64& random) {
  std::vector<uint64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

// LaunchPack() and LaunchChain() as loops.
inline void TwinPack(const SlotView& slot, std::mt19937_64 random = {}) {
  uint64_t secret[xxh3::kSecretWords];
  for (int i = 0; i < xxh3::kSecretWords; ++i) secret[i] = xxh3::DefaultSecret(i);
  for (const uint64_t thread : Shuffled(slot.pack_threads(), random)) PackThread(slot, thread, secret);
}

inline void TwinChain(const SlotView& slot, std::mt19937_64 random = {}) {
  for (const uint64_t chunk : Shuffled(slot.chunk_count, random)) {
    if (slot.chunks[chunk].bytes <= xxh3::kShortBytes) continue;
    uint64_t accumulators[xxh3::kLanes];
    for (int lane = 0; lane < xxh3::kLanes; ++lane) accumulators[lane] = ChainLane(slot, chunk, lane);
    for (int half = 0; half < 2; ++half) FinishHalf(slot, chunk, half, accumulators);
  }
}

// A whole snapshot, window by window. Requires pieces that CheckPieces passed.
inline SnapshotDigests TwinSnapshot(std::span<const SnapshotPiece> pieces, std::span<std::byte> arena,
                                    uint64_t slot_bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  SnapshotDigests digests(pieces.size());
  for (WindowCutter cutter(pieces, slot_bytes); !cutter.done();) {
    const SnapshotWindow window = cutter.Next();
    std::vector<std::byte> staging(window.bytes(), kGarbage);
    std::vector<uint64_t> sums(window.bytes() / xxh3::kBlockBytes * xxh3::kLanes, ~uint64_t{0});
    std::vector<uint64_t> computed(2 * window.chunks.size(), ~uint64_t{0});
    const SlotView slot{.chunks = window.chunks.data(),
                        .chunk_of_page = window.chunk_of_page.data(),
                        .chunk_count = window.chunks.size(),
                        .bytes = window.bytes(),
                        .staging = staging.data(),
                        .sums = sums.data(),
                        .digests = computed.data()};
    TwinPack(slot, std::mt19937_64(random()));
    TwinChain(slot, std::mt19937_64(random()));
    for (const SnapshotWindow::Run& run : window.runs)
      std::copy_n(staging.begin() + run.staged, run.bytes, arena.begin() + run.arena_offset);
    AppendDigests(window, pieces, computed.data(), arena.data(), digests);
  }
  return digests;
}

}  // namespace cairn
