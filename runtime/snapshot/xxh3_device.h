// XXH3-128 of inputs over 240 bytes, divided so that many threads share one input; for GPU and CPU alike.
//
// In XXH3 the stripes of a block only add to the accumulators, and what they add does not depend on them: all
// blocks' sums are found in parallel. Only the scramble after each block must follow the previous one: 8
// independent chains of one multiplication per KiB. Source: doc/xxhash_spec.md of xxHash, "XXH3 algorithm
// description (for large inputs)", whose terms these are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ckpt/base/host_device.h"

namespace cairn::xxh3 {

inline constexpr uint64_t kShortBytes = 240;  // up to here inputs are hashed differently
inline constexpr int kLanes = 8;              // accumulators, and 8-byte words of a stripe
inline constexpr int kStripeBytes = 64;
inline constexpr int kStripesPerBlock = 16;
inline constexpr int kBlockBytes = kStripeBytes * kStripesPerBlock;
inline constexpr int kSecretWords = 24;

inline constexpr uint64_t kPrime32_1 = 0x9E3779B1;
inline constexpr uint64_t kPrime32_2 = 0x85EBCA77;
inline constexpr uint64_t kPrime32_3 = 0xC2B2AE3D;
inline constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87;
inline constexpr uint64_t kPrime64_2 = 0xC2B2AE3D27D4EB4F;
inline constexpr uint64_t kPrime64_3 = 0x165667B19E3779F9;
inline constexpr uint64_t kPrime64_4 = 0x85EBCA77C2B2AE63;
inline constexpr uint64_t kPrime64_5 = 0x27D4EB2F165667C5;
inline constexpr uint64_t kPrimeMx1 = 0x165667919E3779F9;

// The default secret as 24 little-endian words.
CAIRN_HOST_DEVICE inline uint64_t DefaultSecret(int word) {
  static constexpr uint64_t kWords[kSecretWords] = {
      0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb,
      0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c, 0xa32e531b8b65d088,
      0x4ef90da297486471, 0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
      0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
      0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
  };
  return kWords[word];
}

// Word `word` of the secret derived from `seed`, of which `default_word` is the default's.
CAIRN_HOST_DEVICE inline uint64_t Seeded(uint64_t default_word, int word, uint64_t seed) {
  return word % 2 == 0 ? default_word + seed : default_word - seed;
}

// The 8 bytes of the derived secret that begin at byte `offset`.
CAIRN_HOST_DEVICE inline uint64_t SecretAt(int offset, uint64_t seed) {
  const int word = offset / 8, bits = offset % 8 * 8;
  const uint64_t low = Seeded(DefaultSecret(word), word, seed);
  if (bits == 0) return low;
  return low >> bits | Seeded(DefaultSecret(word + 1), word + 1, seed) << (64 - bits);
}

// Two neighbouring lanes: of a stripe, a secret or the accumulators.
struct Pair {
  uint64_t even = 0;
  uint64_t odd = 0;
};

CAIRN_HOST_DEVICE inline uint64_t MultiplyHalves(uint64_t value) {
  return (value & 0xFFFFFFFF) * (value >> 32);
}

// The values that two lanes of a stripe add to the accumulators of these lanes.
CAIRN_HOST_DEVICE inline void Accumulate(Pair stripe, Pair secret, Pair& sums) {
  sums.even += stripe.odd + MultiplyHalves(stripe.even ^ secret.even);
  sums.odd += stripe.even + MultiplyHalves(stripe.odd ^ secret.odd);
}

CAIRN_HOST_DEVICE inline uint64_t InitialAccumulator(int lane) {
  static constexpr uint64_t kInitial[kLanes] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                                                kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
  return kInitial[lane];
}

CAIRN_HOST_DEVICE inline uint64_t Scramble(uint64_t accumulator, uint64_t secret) {
  return (accumulator ^ accumulator >> 47 ^ secret) * kPrime32_1;
}

CAIRN_HOST_DEVICE inline uint64_t Avalanche(uint64_t x) {
  x = (x ^ x >> 37) * kPrimeMx1;
  return x ^ x >> 32;
}

CAIRN_HOST_DEVICE inline uint64_t FinalMerge(const uint64_t* accumulators, uint64_t initial,
                                             int secret_offset, uint64_t seed) {
  uint64_t result = initial;
  for (int i = 0; i < kLanes; i += 2) {
    const uint64_t a = accumulators[i] ^ SecretAt(secret_offset + i * 8, seed);
    const uint64_t b = accumulators[i + 1] ^ SecretAt(secret_offset + i * 8 + 8, seed);
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    result += static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  return Avalanche(result);
}

inline constexpr int kSecretBytes = kSecretWords * 8;
inline constexpr int kScrambleSecret = kSecretBytes - 64;  // offsets of bytes in the secret
inline constexpr int kLastStripeSecret = kSecretBytes - 71;
inline constexpr int kLowSecret = 11;
inline constexpr int kHighSecret = kSecretBytes - 75;

// The low (`half` 0) or high (1) 64 bits of the digest of `bytes` bytes.
CAIRN_HOST_DEVICE inline uint64_t DigestHalf(const uint64_t* accumulators, uint64_t bytes, uint64_t seed,
                                             int half) {
  return half == 0 ? FinalMerge(accumulators, bytes * kPrime64_1, kLowSecret, seed)
                   : FinalMerge(accumulators, ~(bytes * kPrime64_2), kHighSecret, seed);
}

}  // namespace cairn::xxh3
