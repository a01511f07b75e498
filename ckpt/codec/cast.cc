// The conversions are branch-free, so that the compiler vectorises the loops. Halves are rounded by one float
// addition whose unit in the last place is that of the result, in the default rounding mode; or by AVX-512,
// which rounds alike. A block whose results are all normal numbers has nothing to count.
#include "ckpt/codec/cast.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "ckpt/base/simd.h"

namespace cairn {
namespace {

constexpr uint32_t kF32Infinity = 0x7f800000;
constexpr uint64_t kCastBatch = 4096;  // elements; their fp32 values stay in the first-level cache

// Arithmetic: a conditional expression may become a branch, and then the loop around it does not vectorise.
[[gnu::always_inline]] inline uint32_t Select(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = -static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

struct Half {
  static constexpr uint32_t kInfinity = 0x7c00, kLargest = 0x7bff, kSmallestNormal = 0x0400;

  [[gnu::always_inline]] static uint32_t MagnitudeOf(uint32_t m) {  // of finite fp32 bits without the sign
    constexpr uint32_t kTooLarge = 0x47800000;                      // 2^16: infinity, as all above
    constexpr uint32_t kNormal = 0x38800000;                        // 2^-14
    const uint32_t some = Select(m < kTooLarge, m, kTooLarge);
    const uint32_t exponent = Select(m < kNormal, kNormal, some) >> 23;
    const uint32_t unit = (exponent + 13) << 23;
    const float sum = std::bit_cast<float>(some) + std::bit_cast<float>(unit);
    return std::bit_cast<uint32_t>(sum) - unit + ((exponent - (kNormal >> 23)) << 10);
  }
  [[gnu::always_inline]] static uint32_t NanOf(uint32_t m) { return 0x7e00 | ((m >> 13) & 0x1ff); }

  [[gnu::always_inline]] static uint32_t Widen(uint16_t h) {
    const uint32_t m = h & 0x7fff;
    const uint32_t tiny = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(m)) * 0x1p-24f);
    const uint32_t normal = (m << 13) + 0x38000000;
    const uint32_t finite = Select(m < kSmallestNormal, tiny, normal);
    return Select(m >= kInfinity, (m << 13) | kF32Infinity, finite) | (uint32_t{h} & 0x8000) << 16;
  }
};

struct Brain {
  static constexpr uint32_t kInfinity = 0x7f80, kLargest = 0x7f7f, kSmallestNormal = 0x0080;

  [[gnu::always_inline]] static uint32_t MagnitudeOf(uint32_t m) {
    return (m + 0x7fff + ((m >> 16) & 1)) >> 16;
  }
  [[gnu::always_inline]] static uint32_t NanOf(uint32_t m) { return (m >> 16) | 0x40; }
  [[gnu::always_inline]] static uint32_t Widen(uint16_t b) { return uint32_t{b} << 16; }
};

// Rounds any values and counts them.
template <typename Format>
[[gnu::always_inline]] inline CastCounts NarrowCounted(const std::byte* in, uint64_t count,
                                                       std::byte* __restrict out, uint32_t overflow_result) {
  uint32_t overflowed = 0, subnormal = 0, underflowed = 0, nonfinite = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t x;
    std::memcpy(&x, in + i * 4, 4);
    const uint32_t m = x & 0x7fffffff;
    const uint32_t finite = Format::MagnitudeOf(m);
    const bool is_finite = m < kF32Infinity;
    const bool overflows = is_finite & (finite >= Format::kInfinity);
    const uint32_t special = Select(m > kF32Infinity, Format::NanOf(m), Format::kInfinity);
    const uint32_t magnitude = Select(overflows, overflow_result, Select(is_finite, finite, special));
    const auto result = static_cast<uint16_t>(magnitude | (x >> 16 & 0x8000));
    std::memcpy(out + i * 2, &result, 2);
    overflowed += overflows;
    nonfinite += !is_finite;
    underflowed += (m != 0) & (magnitude == 0);
    subnormal += (magnitude != 0) & (magnitude < Format::kSmallestNormal);
  }
  return {count, overflowed, subnormal, underflowed, nonfinite};
}

template <typename Format>
[[gnu::always_inline]] inline void WidenBatch(const std::byte* in, uint64_t count, std::byte* out) {
  for (uint64_t i = 0; i < count; ++i) {
    uint16_t h;
    std::memcpy(&h, in + i * 2, 2);
    const uint32_t x = Format::Widen(h);
    std::memcpy(out + i * 4, &x, 4);
  }
}

constexpr uint64_t kBlock = 64;  // elements

// Rounds a block to bf16. False if a result is not a normal number; then it has to be done again.
[[gnu::always_inline]] inline bool RoundNormal(const std::byte* in, std::byte* __restrict out) {
  uint16_t others = 0;
  for (uint64_t i = 0; i < kBlock; ++i) {
    uint32_t x;
    std::memcpy(&x, in + i * 4, 4);
    const auto magnitude = static_cast<uint16_t>(Brain::MagnitudeOf(x & 0x7fffffff));
    const auto result = static_cast<uint16_t>(magnitude | (x >> 16 & 0x8000));
    std::memcpy(out + i * 2, &result, 2);
    const auto above = static_cast<uint16_t>(magnitude - Brain::kSmallestNormal);
    others |= -static_cast<uint16_t>(above >= Brain::kInfinity - Brain::kSmallestNormal);
  }
  return others == 0;
}

CAIRN_SIMD_CLONES CastCounts ToBrain(const std::byte* in, uint64_t count, std::byte* out,
                                     uint32_t overflow_result) {
  CastCounts counts;
  for (; count >= kBlock; count -= kBlock, in += kBlock * 4, out += kBlock * 2)
    counts += RoundNormal(in, out) ? CastCounts{.elements = kBlock}
                                   : NarrowCounted<Brain>(in, kBlock, out, overflow_result);
  return counts += NarrowCounted<Brain>(in, count, out, overflow_result);
}

CAIRN_SIMD_CLONES CastCounts PlainToHalf(const std::byte* in, uint64_t count, std::byte* out,
                                         uint32_t overflow_result) {
  return NarrowCounted<Half>(in, count, out, overflow_result);
}

#ifdef CAIRN_INTRINSICS
#define CAIRN_V4_TARGET [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]

CAIRN_V4_TARGET inline __mmask32 MaskOf(__mmask16 low, __mmask16 high) {
  return static_cast<__mmask32>(high) << 16 | low;
}
CAIRN_V4_TARGET inline __m256i RoundedHalf(__m512i x) {
  return _mm512_maskz_cvtps_ph(0xffff, _mm512_castsi512_ps(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// 32 elements at a time, counted as in NarrowCounted().
CAIRN_V4_TARGET CastCounts ToHalfByV4(const std::byte* in, uint64_t count, std::byte* out,
                                      uint32_t overflow_result) {
  const __m512i infinity = _mm512_set1_epi32(kF32Infinity), no_sign = _mm512_set1_epi32(0x7fffffff);
  const __m512i half_no_sign = _mm512_set1_epi16(0x7fff), overflow = _mm512_set1_epi16(overflow_result);
  const __m512i half_infinity = _mm512_set1_epi16(Half::kInfinity);
  const __m512i smallest = _mm512_set1_epi16(Half::kSmallestNormal);
  CastCounts counts;
  for (; count >= 32; count -= 32, in += 128, out += 64) {
    const __m512i low = _mm512_loadu_si512(in), high = _mm512_loadu_si512(in + 64);
    __m512i result = __builtin_shufflevector(RoundedHalf(low), RoundedHalf(high), 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i magnitude = result & half_no_sign;
    const __mmask32 tiny = _mm512_cmplt_epu16_mask(magnitude, smallest);
    const __mmask32 large = _mm512_cmpge_epu16_mask(magnitude, half_infinity);
    counts.elements += 32;
    if (tiny | large) {
      const __m512i m_low = low & no_sign, m_high = high & no_sign;
      const __mmask32 finite =
          MaskOf(_mm512_cmplt_epu32_mask(m_low, infinity), _mm512_cmplt_epu32_mask(m_high, infinity));
      const __mmask32 zero = _mm512_testn_epi16_mask(magnitude, magnitude);
      const __mmask32 not_zero =
          MaskOf(_mm512_test_epi32_mask(m_low, m_low), _mm512_test_epi32_mask(m_high, m_high));
      const __mmask32 overflows = finite & large;
      result = _mm512_mask_blend_epi16(overflows, result, (result & ~half_no_sign) | overflow);
      counts.overflowed += std::popcount(overflows);
      counts.nonfinite += std::popcount(~finite);
      counts.underflowed += std::popcount(zero & not_zero);
      counts.subnormal += std::popcount(tiny & ~zero);
    }
    _mm512_storeu_si512(out, result);
  }
  return counts += PlainToHalf(in, count, out, overflow_result);
}

CastCounts ToHalf(const std::byte* in, uint64_t count, std::byte* out, uint32_t overflow_result) {
  static const auto cast = __builtin_cpu_supports("x86-64-v4") ? ToHalfByV4 : PlainToHalf;
  return cast(in, count, out, overflow_result);
}
#else
constexpr auto ToHalf = PlainToHalf;
#endif

CAIRN_SIMD_CLONES void FromHalf(const std::byte* in, uint64_t count, std::byte* out) {
  WidenBatch<Half>(in, count, out);
}
CAIRN_SIMD_CLONES void FromBrain(const std::byte* in, uint64_t count, std::byte* out) {
  WidenBatch<Brain>(in, count, out);
}

// fp32 is exact for every source, so widening has nothing to count but what is not finite.
CAIRN_SIMD_CLONES CastCounts CountWidened(const std::byte* values, uint64_t count) {
  uint32_t nonfinite = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t x;
    std::memcpy(&x, values + i * 4, 4);
    nonfinite += (x & 0x7fffffff) >= kF32Infinity;
  }
  return {.elements = count, .nonfinite = nonfinite};
}

CastCounts CastBatch(Dtype from, const std::byte* in, uint64_t count, Dtype to, std::byte* out,
                     bool saturate) {
  alignas(64) std::byte wide[kCastBatch * 4];
  if (from != Dtype::kF32) {
    std::byte* target = to == Dtype::kF32 ? out : wide;
    (from == Dtype::kF16 ? FromHalf : FromBrain)(in, count, target);
    if (to == Dtype::kF32) return CountWidened(out, count);
    in = wide;
  }
  if (to == Dtype::kF16) return ToHalf(in, count, out, saturate ? Half::kLargest : Half::kInfinity);
  return ToBrain(in, count, out, saturate ? Brain::kLargest : Brain::kInfinity);
}

bool IsCastable(Dtype dtype) { return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16; }

}  // namespace

CastCounts& CastCounts::operator+=(const CastCounts& other) {
  elements += other.elements;
  overflowed += other.overflowed;
  subnormal += other.subnormal;
  underflowed += other.underflowed;
  nonfinite += other.nonfinite;
  return *this;
}

bool CanCast(Dtype from, Dtype to) { return IsCastable(from) && IsCastable(to); }

CastCounts Cast(Dtype from, std::span<const std::byte> in, Dtype to, std::span<std::byte> out,
                OnOverflow on_overflow) {
  const uint64_t from_bytes = SizeOf(from), to_bytes = SizeOf(to);
  const uint64_t count = in.size() / from_bytes;
  assert(CanCast(from, to) && out.size() == count * to_bytes);
  if (from == to) {
    std::memcpy(out.data(), in.data(), in.size());
    return {.elements = count};
  }
  CastCounts counts;
  for (uint64_t at = 0; at < count; at += kCastBatch)
    counts += CastBatch(from, in.data() + at * from_bytes, std::min(kCastBatch, count - at), to,
                        out.data() + at * to_bytes, on_overflow == OnOverflow::kSaturate);
  return counts;
}

}  // namespace cairn
