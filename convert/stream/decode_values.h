// Elements of any dtype as exact doubles, to look at values, not to compute with them. Of types that nothing
// computes with (HoldsNumbers), the bytes as unsigned integers.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "ckpt/base/dtype.h"

namespace cairn {

// Decodes a float of `exponent_bits` and `mantissa_bits` below one sign bit. `has_infinity` false
// (float8_e4m3fn): the highest exponent holds numbers too, and NaN is all ones only.
inline double DecodeSmallFloat(uint32_t bits, int exponent_bits, int mantissa_bits,
                               bool has_infinity = true) {
  const uint32_t exponent_max = (1u << exponent_bits) - 1;
  const uint32_t mantissa_max = (1u << mantissa_bits) - 1;
  const int bias = static_cast<int>(exponent_max >> 1);
  const uint32_t exponent = bits >> mantissa_bits & exponent_max;
  const uint32_t mantissa = bits & mantissa_max;
  const double sign = (bits >> (exponent_bits + mantissa_bits) & 1) != 0 ? -1.0 : 1.0;
  if (exponent == exponent_max && has_infinity)
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  if (exponent == exponent_max && mantissa == mantissa_max) return std::numeric_limits<double>::quiet_NaN();
  const uint32_t significand = exponent == 0 ? mantissa : mantissa | (mantissa_max + 1);
  const int scale = static_cast<int>(exponent == 0 ? 1 : exponent) - bias - mantissa_bits;
  return sign * std::ldexp(significand, scale);
}

// Calls `visit(index, value)` for each element of `bytes`.
template <typename Visit>
void VisitValues(Dtype dtype, std::span<const std::byte> bytes, Visit visit) {
  const auto each = [&]<typename Stored>(Stored, auto decode) {
    for (size_t i = 0; i < bytes.size() / sizeof(Stored); ++i) {
      Stored stored;
      std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
      visit(i, static_cast<double>(decode(stored)));
    }
  };
  const auto same = [](auto value) { return value; };
  switch (dtype) {
    case Dtype::kF64:
      return each(double{}, same);
    case Dtype::kF32:
      return each(float{}, same);
    case Dtype::kF16:
      return each(uint16_t{}, [](uint16_t bits) { return DecodeSmallFloat(bits, 5, 10); });
    case Dtype::kBF16:
      return each(uint16_t{}, [](uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); });
    case Dtype::kF8E4M3:
      return each(uint8_t{},
                  [](uint8_t bits) { return DecodeSmallFloat(bits, 4, 3, /*has_infinity=*/false); });
    case Dtype::kF8E5M2:
      return each(uint8_t{}, [](uint8_t bits) { return DecodeSmallFloat(bits, 5, 2); });
    case Dtype::kI64:
      return each(int64_t{}, same);
    case Dtype::kI32:
      return each(int32_t{}, same);
    case Dtype::kI16:
      return each(int16_t{}, same);
    case Dtype::kI8:
      return each(int8_t{}, same);
    case Dtype::kU8:
    case Dtype::kBool:
    case Dtype::kF8E8M0:
    case Dtype::kF4x2:
      return each(uint8_t{}, same);
  }
}

inline bool IsFloat(Dtype dtype) { return dtype <= Dtype::kF8E5M2; }
// Whether its elements are compared as numbers, or only bit by bit.
inline bool HoldsNumbers(Dtype dtype) { return dtype <= Dtype::kBool; }

}  // namespace cairn
