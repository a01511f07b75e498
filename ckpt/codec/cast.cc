// The conversions are branch-free, so that the compiler vectorises the loops. Halves are rounded by one float
// addition whose unit in the last place is that of the result, in the default rounding mode.
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
    const uint32_t finite = m < kSmallestNormal ? tiny : normal;
    return (m >= kInfinity ? (m << 13) | kF32Infinity : finite) | (uint32_t{h} & 0x8000) << 16;
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

template <typename Format>
[[gnu::always_inline]] inline CastCounts NarrowBatch(const std::byte* in, uint64_t count,
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

CAIRN_SIMD_CLONES CastCounts ToHalf(const std::byte* in, uint64_t count, std::byte* out,
                                    uint32_t overflow_result) {
  return NarrowBatch<Half>(in, count, out, overflow_result);
}
CAIRN_SIMD_CLONES CastCounts ToBrain(const std::byte* in, uint64_t count, std::byte* out,
                                     uint32_t overflow_result) {
  return NarrowBatch<Brain>(in, count, out, overflow_result);
}
CAIRN_SIMD_CLONES void FromHalf(const std::byte* in, uint64_t count, std::byte* out) {
  WidenBatch<Half>(in, count, out);
}
CAIRN_SIMD_CLONES void FromBrain(const std::byte* in, uint64_t count, std::byte* out) {
  WidenBatch<Brain>(in, count, out);
}

// fp32 is exact for every source, so widening has nothing to count but what is not finite.
CastCounts CountWidened(const std::byte* values, uint64_t count) {
  CastCounts counts{.elements = count};
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t x;
    std::memcpy(&x, values + i * 4, 4);
    counts.nonfinite += (x & 0x7fffffff) >= kF32Infinity;
  }
  return counts;
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
