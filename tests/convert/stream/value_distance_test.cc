#include "convert/stream/value_distance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace cairn {
namespace {

template <typename Float>
uint64_t MaxUlp(Dtype dtype, Float a, Float b) {
  ValueDistance distance(dtype, dtype, 0, 0);
  distance.Add(0, std::as_bytes(std::span(&a, 1)), std::as_bytes(std::span(&b, 1)));
  EXPECT_EQ(distance.differing, 1);
  return distance.max_ulp;
}

TEST(ValueDistance, CountsUlpsBetweenValuesOfEachFloatType) {
  EXPECT_EQ(MaxUlp(Dtype::kF32, 1.0f, std::nextafter(1.0f, 2.0f)), 1);
  EXPECT_EQ(MaxUlp(Dtype::kF64, 1.0, std::nextafter(1.0, 2.0)), 1);
  EXPECT_EQ(MaxUlp(Dtype::kF64, -1.0, -std::nextafter(std::nextafter(1.0, 2.0), 2.0)), 2);
  const double tiny = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(MaxUlp(Dtype::kF64, -tiny, tiny), 2);
  const double most = std::numeric_limits<double>::max();  // the highest bits below infinity's
  EXPECT_EQ(MaxUlp(Dtype::kF64, -most, most), 2 * uint64_t{0x7fefffffffffffff});
}

}  // namespace
}  // namespace cairn
