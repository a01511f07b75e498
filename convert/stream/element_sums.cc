// Two ways to the same sum. The plain one takes a key in two halves of 32 bits, whose products with an
// element fit into 64-bit lanes; the compiler vectorises it. The lanes are added to the 128-bit sum every
// 2^15 elements, before they can overflow. The other one needs AVX-512 IFMA: a key is its low 52 bits and the
// 12 above, and one instruction each adds the low and the high half of the product with the former. Elements
// of 8 bytes are multiplied in 128 bits.

#include "convert/stream/element_sums.h"

#include <algorithm>
#include <cstring>

#include "ckpt/base/simd.h"

namespace cairn {
namespace {

constexpr uint64_t kLow = 0xffffffff;
constexpr uint64_t kMultiply1 = 0xbf58476d1ce4e5b9, kMultiply2 = 0x94d049bb133111eb;

[[gnu::always_inline]] inline uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * kMultiply1;
  z = (z ^ (z >> 27)) * kMultiply2;
  return z ^ (z >> 31);
}

// The products of either half of the key with at most 16 bits leave room for 2^16 of them, those with 32 bits
// are split once more.
template <typename T>
[[gnu::always_inline]] inline ElementSum SumLanes(const std::byte* data, uint64_t count, uint64_t at) {
  constexpr uint64_t kBatch = 1 << 15;
  ElementSum sum = 0;
  for (uint64_t begin = 0; begin < count; begin += kBatch) {
    const uint64_t n = std::min(kBatch, count - begin);
    const std::byte* batch = data + begin * sizeof(T);
    uint64_t low = 0, middle = 0, high = 0;  // worth 1, 2^32 and 2^64
    uint64_t z = at + begin * kElementStep;
    for (uint64_t i = 0; i < n; ++i, z += kElementStep) {
      T value;
      std::memcpy(&value, batch + i * sizeof(T), sizeof(T));
      const uint32_t bits = value;  // 32 bits times 32 bits is one instruction
      const uint64_t key = Mix(z);
      const uint64_t a = uint64_t{static_cast<uint32_t>(key)} * bits;
      const uint64_t b = uint64_t{static_cast<uint32_t>(key >> 32)} * bits;
      if constexpr (sizeof(T) <= 2) {
        low += a + bits;
        middle += b;
      } else {
        low += (a & kLow) + bits;
        middle += (a >> 32) + (b & kLow);
        high += b >> 32;
      }
    }
    sum += ElementSum{low} + (ElementSum{middle} << 32) + (ElementSum{high} << 64);
  }
  return sum;
}

CAIRN_SIMD_CLONES ElementSum SumOf8(const std::byte* data, uint64_t count, uint64_t at) {
  return SumLanes<uint8_t>(data, count, at);
}
CAIRN_SIMD_CLONES ElementSum SumOf16(const std::byte* data, uint64_t count, uint64_t at) {
  return SumLanes<uint16_t>(data, count, at);
}
CAIRN_SIMD_CLONES ElementSum SumOf32(const std::byte* data, uint64_t count, uint64_t at) {
  return SumLanes<uint32_t>(data, count, at);
}
ElementSum SumOf64(const std::byte* data, uint64_t count, uint64_t at) {
  ElementSum sum = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t bits;
    std::memcpy(&bits, data + i * 8, 8);
    sum += ElementSum{Mix(at + i * kElementStep)} * bits + bits;
  }
  return sum;
}

#ifdef CAIRN_INTRINSICS
#define CAIRN_IFMA_TARGET [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512ifma")]]

using Lanes = uint64_t __attribute__((vector_size(64)));  // eight

// With masks, since GCC 12 warns about the unmasked intrinsics.
template <typename T>
CAIRN_IFMA_TARGET inline Lanes LoadEight(const std::byte* from) {
  if constexpr (sizeof(T) == 1)
    return (Lanes)_mm512_maskz_cvtepu8_epi64(0xff, _mm_loadl_epi64((const __m128i*)from));
  else if constexpr (sizeof(T) == 2)
    return (Lanes)_mm512_maskz_cvtepu16_epi64(0xff, _mm_loadu_si128((const __m128i*)from));
  else
    return (Lanes)_mm512_maskz_cvtepu32_epi64(0xff, _mm256_loadu_si256((const __m256i*)from));
}

// Adds the low, or the high 52 bits of the product of the low 52 bits of `a` and `b`.
CAIRN_IFMA_TARGET inline Lanes AddLow(Lanes sum, Lanes a, Lanes b) {
  return (Lanes)_mm512_madd52lo_epu64((__m512i)sum, (__m512i)a, (__m512i)b);
}
CAIRN_IFMA_TARGET inline Lanes AddHigh(Lanes sum, Lanes a, Lanes b) {
  return (Lanes)_mm512_madd52hi_epu64((__m512i)sum, (__m512i)a, (__m512i)b);
}

CAIRN_IFMA_TARGET inline ElementSum SumOfLanes(Lanes lanes) {
  ElementSum sum = 0;
  for (int i = 0; i < 8; ++i) sum += lanes[i];
  return sum;
}

// 2^12 products of 52 bits fit into a lane.
template <typename T>
CAIRN_IFMA_TARGET ElementSum SumByIfma(const std::byte* data, uint64_t count, uint64_t at) {
  constexpr uint64_t kLanes = 8, kUnroll = 4, kStride = kLanes * kUnroll, kBatch = kLanes * 4096;
  Lanes next = at + Lanes{0, 1, 2, 3, 4, 5, 6, 7} * kElementStep;
  const uint64_t whole = count / kStride * kStride;
  ElementSum sum = 0;
  for (uint64_t i = 0; i < whole;) {
    const uint64_t end = std::min(whole, i + kBatch);
    Lanes low{}, high{}, top{}, plain{};
    for (; i < end; i += kStride) {
#pragma GCC unroll 4
      for (uint64_t u = 0; u < kUnroll; ++u) {
        const Lanes bits = LoadEight<T>(data + (i + u * kLanes) * sizeof(T));
        Lanes z = next;
        next += kElementStep * kLanes;
        z = (z ^ (z >> 30)) * kMultiply1;
        z = (z ^ (z >> 27)) * kMultiply2;
        z ^= z >> 31;
        plain += bits;
        low = AddLow(low, z, bits);
        high = AddHigh(high, z, bits);
        top = AddLow(top, z >> 52, bits);
      }
    }
    sum += SumOfLanes(low) + SumOfLanes(plain) + ((SumOfLanes(high) + SumOfLanes(top)) << 52);
  }
  return sum + SumLanes<T>(data + whole * sizeof(T), count - whole, at + whole * kElementStep);
}

bool HasIfma() {
  static const bool has = __builtin_cpu_supports("avx512ifma") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has;
}
#endif

}  // namespace

ElementSum PlainSumOfElements(uint64_t element_bytes, const std::byte* data, uint64_t count, uint64_t at) {
  switch (element_bytes) {
    case 1:
      return SumOf8(data, count, at);
    case 2:
      return SumOf16(data, count, at);
    case 4:
      return SumOf32(data, count, at);
    default:
      return SumOf64(data, count, at);
  }
}

ElementSum SumOfElements(uint64_t element_bytes, const std::byte* data, uint64_t count, uint64_t at) {
#ifdef CAIRN_INTRINSICS
  if (HasIfma() && element_bytes == 1) return SumByIfma<uint8_t>(data, count, at);
  if (HasIfma() && element_bytes == 2) return SumByIfma<uint16_t>(data, count, at);
  if (HasIfma() && element_bytes == 4) return SumByIfma<uint32_t>(data, count, at);
#endif
  return PlainSumOfElements(element_bytes, data, count, at);
}

}  // namespace cairn
