// 16-bit floats as bits: widened to fp32 and rounded from it, to the nearest even, alike on a CPU and on a
// GPU.
//
// Free of branches, so that the compiler vectorises loops over them.
#pragma once

#include <cstdint>

#include "ckpt/base/host_device.h"

namespace cairn {

struct Fp16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

#define CAIRN_ALWAYS_INLINE [[gnu::always_inline]] CAIRN_HOST_DEVICE inline

struct FloatBits {
  static constexpr uint32_t kInfinity = 0x7f800000;
  CAIRN_ALWAYS_INLINE static uint32_t Of(float x) { return __builtin_bit_cast(uint32_t, x); }
  CAIRN_ALWAYS_INLINE static float ToFloat(uint32_t bits) { return __builtin_bit_cast(float, bits); }
  // Arithmetic: a conditional expression may become a branch.
  CAIRN_ALWAYS_INLINE static uint32_t Select(bool condition, uint32_t yes, uint32_t no) {
    const uint32_t mask = -static_cast<uint32_t>(condition);
    return (yes & mask) | (no & ~mask);
  }
};

CAIRN_ALWAYS_INLINE float Wide(float x) { return x; }
CAIRN_ALWAYS_INLINE float Wide(Bf16 x) { return FloatBits::ToFloat(uint32_t{x.bits} << 16); }
CAIRN_ALWAYS_INLINE float Wide(Fp16 x) {
  const uint32_t m = x.bits & 0x7fff;
  const uint32_t tiny = FloatBits::Of(static_cast<float>(static_cast<int32_t>(m)) * 0x1p-24f);  // subnormal
  const uint32_t finite = FloatBits::Select(m < 0x0400, tiny, (m << 13) + 0x38000000);
  const uint32_t magnitude = FloatBits::Select(m >= 0x7c00, (m << 13) | FloatBits::kInfinity, finite);
  return FloatBits::ToFloat(magnitude | (uint32_t{x.bits} & 0x8000) << 16);
}

CAIRN_ALWAYS_INLINE void Round(float x, float& to) { to = x; }
CAIRN_ALWAYS_INLINE void Round(float x, Bf16& to) {
  const uint32_t bits = FloatBits::Of(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>(
      FloatBits::Select((bits & 0x7fffffff) > FloatBits::kInfinity, (bits >> 16) | 0x40, rounded));
}
// By one float addition whose unit in the last place is that of the result.
CAIRN_ALWAYS_INLINE void Round(float x, Fp16& to) {
  constexpr uint32_t kTooLarge = 0x47800000;  // 2^16: infinity, as all above
  constexpr uint32_t kNormal = 0x38800000;    // 2^-14
  const uint32_t m = FloatBits::Of(x) & 0x7fffffff;
  const uint32_t some = FloatBits::Select(m < kTooLarge, m, kTooLarge);
  const uint32_t exponent = FloatBits::Select(m < kNormal, kNormal, some) >> 23;
  const uint32_t unit = (exponent + 13) << 23;
  const uint32_t sum = FloatBits::Of(FloatBits::ToFloat(some) + FloatBits::ToFloat(unit));
  const uint32_t finite = sum - unit + ((exponent - (kNormal >> 23)) << 10);
  const uint32_t magnitude = FloatBits::Select(m > FloatBits::kInfinity, 0x7e00, finite);
  to.bits = static_cast<uint16_t>(magnitude | (FloatBits::Of(x) >> 16 & 0x8000));
}

}  // namespace cairn
