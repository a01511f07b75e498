#include "ckpt/codec/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace cairn {
namespace {

struct Format {
  Dtype dtype;
  int mantissa_bits;
  int min_exponent;  // of normal numbers: 2^min_exponent
  int max_exponent;
};
constexpr Format kHalf = {Dtype::kF16, 10, -14, 15};
constexpr Format kBrain = {Dtype::kBF16, 7, -126, 127};

// The value of a 16-bit pattern, from the definition of the format.
double ValueOf(const Format& f, uint16_t bits) {
  const int mantissa = bits & ((1 << f.mantissa_bits) - 1);
  const int exponent = (bits & 0x7fff) >> f.mantissa_bits;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent > f.max_exponent - f.min_exponent + 1)
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, f.min_exponent - f.mantissa_bits);
  return sign *
         std::ldexp(mantissa + (1 << f.mantissa_bits), exponent - 1 + f.min_exponent - f.mantissa_bits);
}

// Rounds a finite fp32 value with the C library, in the unit of its binade.
uint16_t PlainRound(const Format& f, float value) {
  const double magnitude = std::fabs(static_cast<double>(value));
  int exponent = magnitude == 0 ? f.min_exponent : std::ilogb(magnitude);
  exponent = std::max(exponent, f.min_exponent);
  const double units = std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent));
  // The carry out of the mantissa moves into the exponent by itself; a subnormal has exponent field 0.
  uint32_t bits =
      static_cast<uint32_t>(units) + (static_cast<uint32_t>(exponent - f.min_exponent) << f.mantissa_bits);
  const uint32_t infinity = static_cast<uint32_t>(f.max_exponent - f.min_exponent + 2) << f.mantissa_bits;
  bits = std::min(bits, infinity);
  return static_cast<uint16_t>(bits | (std::signbit(value) ? 0x8000 : 0));
}

CastCounts CastOf(const std::vector<uint32_t>& in, Dtype to, std::vector<uint16_t>& out,
                  OnOverflow on_overflow = OnOverflow::kInfinity) {
  out.resize(in.size());
  return Cast(Dtype::kF32, std::as_bytes(std::span(in)), to, std::as_writable_bytes(std::span(out)),
              on_overflow);
}

// Each exponent and sign with patterns around every place where rounding changes, and random ones: 2^24 in
// all.
std::vector<uint32_t> StratifiedPatterns() {
  std::vector<uint32_t> patterns;
  std::mt19937 random(1);
  for (uint32_t top = 0; top < 512; ++top) {
    for (int bit = 0; bit < 23; ++bit)
      for (int32_t d = -2; d <= 2; ++d) patterns.push_back(top << 23 | (((1u << bit) + d) & 0x7fffff));
    while (patterns.size() < (top + 1) * 32768) patterns.push_back(top << 23 | (random() & 0x7fffff));
  }
  return patterns;
}

void ExpectRounded(const Format& format) {
  const std::vector<uint32_t> in = StratifiedPatterns();
  std::vector<uint16_t> out;
  const CastCounts counts = CastOf(in, format.dtype, out);
  CastCounts expected{.elements = in.size()};
  for (size_t i = 0; i < in.size(); ++i) {
    const float value = std::bit_cast<float>(in[i]);
    if (std::isnan(value)) {
      ++expected.nonfinite;
      ASSERT_TRUE(std::isnan(ValueOf(format, out[i]))) << std::hex << in[i];
      ASSERT_EQ(out[i] >> 15, in[i] >> 31);
    } else if (std::isinf(value)) {
      ++expected.nonfinite;
      ASSERT_EQ(ValueOf(format, out[i]), static_cast<double>(value));
    } else {
      const uint16_t plain = PlainRound(format, value);
      ASSERT_EQ(out[i], plain) << std::hex << in[i];
      const double result = ValueOf(format, plain);
      expected.overflowed += std::isinf(result);
      expected.underflowed += value != 0 && result == 0;
      expected.subnormal += result != 0 && std::fabs(result) < std::ldexp(1, format.min_exponent);
    }
  }
  EXPECT_EQ(counts, expected);
}

TEST(CastTest, Fp32ToFp16RoundsToNearestEven) { ExpectRounded(kHalf); }
TEST(CastTest, Fp32ToBf16RoundsToNearestEven) { ExpectRounded(kBrain); }

// Single elements never take the code paths of whole blocks. NaNs included.
TEST(CastTest, CastingABlockEqualsCastingEachElement) {
  const std::vector<uint32_t> in = StratifiedPatterns();
  for (const Dtype to : {Dtype::kF16, Dtype::kBF16})
    for (const OnOverflow on_overflow : {OnOverflow::kInfinity, OnOverflow::kSaturate}) {
      std::vector<uint16_t> block, alone(in.size());
      const CastCounts counts = CastOf(in, to, block, on_overflow);
      CastCounts sum;
      for (size_t i = 0; i < in.size(); ++i)
        sum += Cast(Dtype::kF32, std::as_bytes(std::span(&in[i], 1)), to,
                    std::as_writable_bytes(std::span(&alone[i], 1)), on_overflow);
      EXPECT_TRUE(block == alone);
      EXPECT_EQ(counts, sum);
    }
}

TEST(CastTest, SixteenBitsWidenExactly) {
  for (const Format& format : {kHalf, kBrain}) {
    std::vector<uint16_t> in(1 << 16);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint16_t>(i);
    std::vector<float> out(in.size());
    Cast(format.dtype, std::as_bytes(std::span(in)), Dtype::kF32, std::as_writable_bytes(std::span(out)),
         OnOverflow::kInfinity);
    for (size_t i = 0; i < in.size(); ++i) {
      const double value = ValueOf(format, in[i]);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(out[i]));
      } else {
        ASSERT_EQ(out[i], value) << i;
      }
      ASSERT_EQ(std::signbit(out[i]), (in[i] & 0x8000) != 0);
    }
  }
}

TEST(CastTest, CastsBetweenSixteenBitTypesRoundOnce) {
  std::vector<uint16_t> in(1 << 16), out(1 << 16);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint16_t>(i);
  for (const auto& [from, to] : {std::pair(kHalf, kBrain), std::pair(kBrain, kHalf)}) {
    Cast(from.dtype, std::as_bytes(std::span(in)), to.dtype, std::as_writable_bytes(std::span(out)),
         OnOverflow::kInfinity);
    for (size_t i = 0; i < in.size(); ++i) {
      const double value = ValueOf(from, in[i]);
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(out[i], PlainRound(to, static_cast<float>(value))) << i;
    }
  }
}

TEST(CastTest, SaturatesFiniteValuesOnly) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<uint32_t> in;
  for (float value : {65519.0f, 65520.0f, -1e30f, infinity}) in.push_back(std::bit_cast<uint32_t>(value));
  std::vector<uint16_t> out;
  const CastCounts counts = CastOf(in, Dtype::kF16, out, OnOverflow::kSaturate);
  EXPECT_EQ(out, (std::vector<uint16_t>{0x7bff, 0x7bff, 0xfbff, 0x7c00}));
  EXPECT_EQ(counts.overflowed, 2u);
  EXPECT_EQ(counts.nonfinite, 1u);
}

TEST(CastTest, EqualTypesCopy) {
  const std::vector<uint32_t> in = {1, 0x7f800001, 0xffffffff};
  std::vector<uint32_t> out(3);
  Cast(Dtype::kF32, std::as_bytes(std::span(in)), Dtype::kF32, std::as_writable_bytes(std::span(out)),
       OnOverflow::kInfinity);
  EXPECT_EQ(in, out);
}

TEST(CastTest, IntegersAreRefused) {
  EXPECT_FALSE(CanCast(Dtype::kI32, Dtype::kF16));
  EXPECT_TRUE(CanCast(Dtype::kBF16, Dtype::kF16));
}

}  // namespace
}  // namespace cairn
