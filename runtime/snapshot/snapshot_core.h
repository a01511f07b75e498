// The work of a thread of the snapshot kernels, as functions that a CPU can run as well.
//
// A slot is packed in the shard's layout: chunks at multiples of a page, zeros after them. Its first kernel
// has four threads for each KiB: thread `pair` moves 16 of every 64 bytes and adds up what XXH3 takes from
// them. Its second kernel has eight threads for each chunk, one a lane, and chains the sums.
// snapshot_kernels.cu starts them on a GPU, tests/runtime/snapshot/snapshot_twin.h on a CPU.
#pragma once

#include <cstring>

#include "runtime/snapshot/xxh3_device.h"

namespace cairn {

inline constexpr uint64_t kSnapshotPageBytes = 4096;
inline constexpr int kPairsPerBlock = xxh3::kLanes / 2;

// At most kChunkBytes of one piece: what one digest covers.
struct SnapshotChunk {
  const std::byte* source = nullptr;  // any alignment
  uint64_t bytes = 0;                 // not 0
  uint64_t seed = 0;
  uint64_t staged = 0;  // offset in the slot; a multiple of kSnapshotPageBytes
};

// A slot as the kernels see it.
struct SlotView {
  const SnapshotChunk* chunks = nullptr;
  const uint32_t* chunk_of_page = nullptr;  // bytes / kSnapshotPageBytes of them
  uint64_t chunk_count = 0;
  uint64_t bytes = 0;            // in use; whole pages
  std::byte* staging = nullptr;  // aligned to 16
  uint64_t* sums = nullptr;      // [bytes / xxh3::kBlockBytes, xxh3::kLanes]
  uint64_t* digests =
      nullptr;  // [chunk_count, 2]: low, high; not written for chunks of up to xxh3::kShortBytes

  CAIRN_HOST_DEVICE uint64_t pack_threads() const { return bytes / xxh3::kBlockBytes * kPairsPerBlock; }
  CAIRN_HOST_DEVICE uint64_t chain_threads() const { return chunk_count * xxh3::kLanes; }
};

CAIRN_HOST_DEVICE inline xxh3::Pair LoadAligned(const std::byte* at) {  // a multiple of 16 on a GPU
#ifdef __CUDA_ARCH__
  const auto words = *reinterpret_cast<const ulonglong2*>(at);
  return {words.x, words.y};
#else
  xxh3::Pair pair;
  std::memcpy(&pair, at, sizeof(pair));
  return pair;
#endif
}

CAIRN_HOST_DEVICE inline void StoreAligned(void* at, xxh3::Pair pair) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<ulonglong2*>(at) = {pair.even, pair.odd};
#else
  std::memcpy(at, &pair, sizeof(pair));
#endif
}

// Little-endian words of the bytes [at, at + 16) of `source`, one by one; zero beyond its end.
CAIRN_HOST_DEVICE inline xxh3::Pair LoadBytes(const std::byte* source, uint64_t bytes, uint64_t at) {
  uint64_t words[2] = {0, 0};
  for (int i = 0; i < 16; ++i)
    if (at + i < bytes) words[i / 8] |= static_cast<uint64_t>(source[at + i]) << (i % 8 * 8);
  return {words[0], words[1]};
}

// The same, by aligned loads of 16 bytes where they stay within the source. Requires `at` a multiple of 16.
CAIRN_HOST_DEVICE inline xxh3::Pair LoadUnit(const std::byte* source, uint64_t bytes, uint64_t at) {
  const unsigned shift = reinterpret_cast<uintptr_t>(source) % 16;
  const uint64_t end = shift == 0 ? at + 16 : at - shift + 32;
  if (at < shift || end > bytes) return LoadBytes(source, bytes, at);
  const xxh3::Pair low = LoadAligned(source + at - shift);
  if (shift == 0) return low;
  const xxh3::Pair high = LoadAligned(source + at - shift + 16);
  const uint64_t a = shift < 8 ? low.even : low.odd;
  const uint64_t b = shift < 8 ? low.odd : high.even;
  const uint64_t c = shift < 8 ? high.even : high.odd;
  const unsigned bits = shift % 8 * 8;
  if (bits == 0) return {a, b};
  return {a >> bits | b << (64 - bits), b >> bits | c << (64 - bits)};
}

// Thread `thread` of slot.pack_threads(). `secret`: DefaultSecret(), where it is quick to read.
CAIRN_HOST_DEVICE inline void PackThread(const SlotView& slot, uint64_t thread, const uint64_t* secret) {
  const uint64_t slot_block = thread / kPairsPerBlock;
  const int pair = static_cast<int>(thread % kPairsPerBlock);
  const SnapshotChunk chunk =
      slot.chunks[slot.chunk_of_page[slot_block / (kSnapshotPageBytes / xxh3::kBlockBytes)]];
  const uint64_t block_begin = slot_block * xxh3::kBlockBytes - chunk.staged;
  const uint64_t hashed_end =
      (chunk.bytes - 1) / xxh3::kStripeBytes * xxh3::kStripeBytes;  // last stripe: later
  xxh3::Pair sums;
  for (int n = 0; n < xxh3::kStripesPerBlock; ++n) {
    const uint64_t stripe_begin = block_begin + n * xxh3::kStripeBytes;
    const uint64_t at = stripe_begin + pair * 16;
    const xxh3::Pair data = LoadUnit(chunk.source, chunk.bytes, at);
    StoreAligned(slot.staging + chunk.staged + at, data);
    const int word = n + 2 * pair;
    if (stripe_begin < hashed_end)
      xxh3::Accumulate(data,
                       {xxh3::Seeded(secret[word], word, chunk.seed),
                        xxh3::Seeded(secret[word + 1], word + 1, chunk.seed)},
                       sums);
  }
  StoreAligned(slot.sums + slot_block * xxh3::kLanes + 2 * pair, sums);
}

// Accumulator `lane` of a chunk after its last stripe. Requires more than xxh3::kShortBytes.
CAIRN_HOST_DEVICE inline uint64_t ChainLane(const SlotView& slot, uint64_t chunk_index, int lane) {
  constexpr int kAhead = 16;  // loads in flight before the chain needs the first of them
  const SnapshotChunk chunk = slot.chunks[chunk_index];
  const uint64_t* sums = slot.sums + chunk.staged / xxh3::kBlockBytes * xxh3::kLanes + lane;
  const uint64_t secret = xxh3::SecretAt(xxh3::kScrambleSecret + lane * 8, chunk.seed);
  const uint64_t scrambled = (chunk.bytes - 1) / xxh3::kBlockBytes;  // blocks; the last one is not
  uint64_t accumulator = xxh3::InitialAccumulator(lane);
  uint64_t block = 0;
  for (; block + kAhead <= scrambled; block += kAhead) {
    uint64_t ahead[kAhead];
    for (int i = 0; i < kAhead; ++i) ahead[i] = sums[(block + i) * xxh3::kLanes];
    for (int i = 0; i < kAhead; ++i) accumulator = xxh3::Scramble(accumulator + ahead[i], secret);
  }
  for (; block < scrambled; ++block)
    accumulator = xxh3::Scramble(accumulator + sums[block * xxh3::kLanes], secret);
  accumulator += sums[scrambled * xxh3::kLanes];
  const xxh3::Pair last =
      LoadBytes(slot.staging + chunk.staged, chunk.bytes, chunk.bytes - xxh3::kStripeBytes + lane / 2 * 16);
  const uint64_t own = lane % 2 == 0 ? last.even : last.odd, other = lane % 2 == 0 ? last.odd : last.even;
  return accumulator + other +
         xxh3::MultiplyHalves(own ^ xxh3::SecretAt(xxh3::kLastStripeSecret + lane * 8, chunk.seed));
}

// Writes one half of a chunk's digest from its eight accumulators.
CAIRN_HOST_DEVICE inline void FinishHalf(const SlotView& slot, uint64_t chunk_index, int half,
                                         const uint64_t* accumulators) {
  const SnapshotChunk& chunk = slot.chunks[chunk_index];
  slot.digests[2 * chunk_index + half] = xxh3::DigestHalf(accumulators, chunk.bytes, chunk.seed, half);
}

}  // namespace cairn
