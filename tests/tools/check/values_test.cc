#include <gtest/gtest.h>

#include "ckpt/base/chunks.h"
#include "ckpt/base/dtype.h"
#include "convert/stream/decode_values.h"
#include "convert/stream/value_distance.h"
#include "convert/stream/value_stats.h"

// A function of OpenMP's runtime; null in a build without it.
extern "C" void omp_set_num_threads(int threads) __attribute__((weak));

namespace cairn {
namespace {

double Decode(Dtype dtype, uint64_t bits) {
  double decoded = 0;
  VisitValues(dtype, std::as_bytes(std::span(&bits, 1)).first(SizeOf(dtype)),
              [&](size_t, double v) { decoded = v; });
  return decoded;
}

TEST(DecodeValuesTest, EveryHalfMatchesTheCompiler) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto expected = static_cast<double>(std::bit_cast<_Float16>(static_cast<uint16_t>(bits)));
    const double decoded = Decode(Dtype::kF16, bits);
    if (std::isnan(expected))
      EXPECT_TRUE(std::isnan(decoded)) << bits;
    else
      EXPECT_EQ(decoded, expected) << bits;
  }
}

TEST(DecodeValuesTest, EightBitFloatsFollowTheirFormats) {
  EXPECT_EQ(Decode(Dtype::kF8E4M3, 0x7e), 448);  // the largest
  EXPECT_EQ(Decode(Dtype::kF8E4M3, 0x01), std::ldexp(1, -9));
  EXPECT_EQ(Decode(Dtype::kF8E4M3, 0xb8), -1);
  EXPECT_TRUE(std::isnan(Decode(Dtype::kF8E4M3, 0x7f)));
  EXPECT_EQ(Decode(Dtype::kF8E5M2, 0x7b), 57344);
  EXPECT_EQ(Decode(Dtype::kF8E5M2, 0x01), std::ldexp(1, -16));
  EXPECT_EQ(Decode(Dtype::kF8E5M2, 0xfc), -INFINITY);
  EXPECT_TRUE(std::isnan(Decode(Dtype::kF8E5M2, 0x7d)));
}

TEST(DecodeValuesTest, DecodesIntegersAndWideFloats) {
  EXPECT_EQ(Decode(Dtype::kI8, 0xff), -1);
  EXPECT_EQ(Decode(Dtype::kU8, 0xff), 255);
  EXPECT_EQ(Decode(Dtype::kI64, static_cast<uint64_t>(-5)), -5);
  EXPECT_EQ(Decode(Dtype::kBF16, 0x3f80), 1);
  EXPECT_EQ(Decode(Dtype::kF64, std::bit_cast<uint64_t>(0.1)), 0.1);
}

TEST(ValueStatsTest, ManyThreadsGiveTheResultOfOne) {
  std::vector<float> values(5 * kChunkElements + 17);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i)) * 1e3f;
  values[kChunkElements] = NAN;
  values[3 * kChunkElements + 5] = -7e3f;
  std::vector<float> others = values;
  others[2 * kChunkElements + 1] += 1;
  others[4 * kChunkElements] += 2;
  std::vector<double> sums;
  for (const int threads : {1, 2, 7}) {
    if (omp_set_num_threads != nullptr) omp_set_num_threads(threads);
    ValueStats stats;
    stats.Add(Dtype::kF32, std::as_bytes(std::span(values)));
    EXPECT_EQ(stats.count, values.size());
    EXPECT_EQ(stats.nan, 1u);
    EXPECT_EQ(stats.min, -7e3f);
    ValueDistance distance(Dtype::kF32, Dtype::kF32, 0, 0);
    distance.Add(100, std::as_bytes(std::span(values)), std::as_bytes(std::span(others)));
    EXPECT_EQ(distance.elements, values.size());
    EXPECT_EQ(distance.differing, 2u);
    EXPECT_EQ(distance.first, 100 + 2 * kChunkElements + 1);
    EXPECT_NEAR(distance.max_absolute, 2, 1e-3);
    sums.insert(sums.end(), {stats.squares, distance.relative_norm(), distance.cosine()});
  }
  for (size_t i = 3; i < sums.size(); ++i) EXPECT_EQ(sums[i], sums[i % 3]) << "to the last bit";
}

TEST(ValueStatsTest, CountsNonFiniteValuesSeparately) {
  ValueStats stats;
  const float first[] = {NAN, -INFINITY, 3};
  const float second[] = {-4, 0, -0.0f};
  stats.Add(Dtype::kF32, std::as_bytes(std::span(first)));
  stats.Add(Dtype::kF32, std::as_bytes(std::span(second)));
  EXPECT_EQ(stats.count, 6u);
  EXPECT_EQ(stats.nan, 1u);
  EXPECT_EQ(stats.infinite, 1u);
  EXPECT_EQ(stats.zeros, 2u);
  EXPECT_EQ(stats.min, -4);
  EXPECT_EQ(stats.max, 3);
  EXPECT_EQ(stats.norm(), 5);
}

}  // namespace
}  // namespace cairn
