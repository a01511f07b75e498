// 16-bit floats as bits: widened to fp32 and rounded from it, to the nearest even, alike on a CPU and on a
// GPU.
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

inline constexpr uint32_t kInfinityBits = 0x7f800000;  // of fp32; above it: not a number
CAIRN_HOST_DEVICE inline uint32_t BitsOf(float x) { return __builtin_bit_cast(uint32_t, x); }
CAIRN_HOST_DEVICE inline float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }

CAIRN_HOST_DEVICE inline float Wide(float x) { return x; }
CAIRN_HOST_DEVICE inline float Wide(Bf16 x) { return FloatOf(uint32_t{x.bits} << 16); }
CAIRN_HOST_DEVICE inline float Wide(Fp16 x) {
  const uint32_t sign = (uint32_t{x.bits} & 0x8000) << 16, m = x.bits & 0x7fff;
  if (m < 0x0400) return FloatOf(sign | BitsOf(static_cast<float>(m) * 0x1p-24f));  // subnormal
  return FloatOf(sign | (m >= 0x7c00 ? m << 13 | kInfinityBits : (m << 13) + 0x38000000));
}

CAIRN_HOST_DEVICE inline void Round(float x, float& to) { to = x; }
CAIRN_HOST_DEVICE inline void Round(float x, Bf16& to) {
  const uint32_t bits = BitsOf(x);
  const bool is_nan = (bits & 0x7fffffff) > kInfinityBits;
  to.bits = static_cast<uint16_t>(is_nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// By one float addition whose unit in the last place is that of the result.
CAIRN_HOST_DEVICE inline void Round(float x, Fp16& to) {
  constexpr uint32_t kTooLarge = 0x47800000;  // 2^16: infinity, as all above
  constexpr uint32_t kNormal = 0x38800000;    // 2^-14
  const uint32_t m = BitsOf(x) & 0x7fffffff, some = m < kTooLarge ? m : kTooLarge;
  const uint32_t exponent = (m < kNormal ? kNormal : some) >> 23;
  const uint32_t unit = (exponent + 13) << 23;
  const uint32_t sum = BitsOf(FloatOf(some) + FloatOf(unit));
  const uint32_t finite = sum - unit + ((exponent - (kNormal >> 23)) << 10);
  to.bits = static_cast<uint16_t>((m > kInfinityBits ? 0x7e00 : finite) | (BitsOf(x) >> 16 & 0x8000));
}

}  // namespace cairn
