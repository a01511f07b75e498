#include "runtime/data/numpy_shuffle.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace cairn {
namespace {

template <typename T>
std::vector<T> Iota(size_t n) {
  std::vector<T> values(n);
  std::iota(values.begin(), values.end(), T{0});
  return values;
}

std::vector<int64_t> Shuffled(uint32_t seed, size_t n) {
  std::vector<int64_t> values = Iota<int64_t>(n);
  NumpyShuffler(seed).Shuffle(std::span(values));
  return values;
}

// Made by numpy 2.4.6: a = numpy.arange(n); numpy.random.RandomState(seed).shuffle(a).
TEST(NumpyShuffleTest, EqualsNumpy) {
  EXPECT_EQ(Shuffled(1234, 10), (std::vector<int64_t>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
  EXPECT_EQ(Shuffled(0, 17),
            (std::vector<int64_t>{1, 6, 8, 9, 13, 4, 2, 14, 10, 7, 16, 11, 3, 0, 5, 15, 12}));
  EXPECT_EQ(Shuffled(4294967295u, 5), (std::vector<int64_t>{4, 1, 0, 2, 3}));
}

TEST(NumpyShuffleTest, OneStreamServesSeveralArrays) {
  NumpyShuffler shuffler(42);
  std::vector<uint32_t> large = Iota<uint32_t>(1000);
  shuffler.Shuffle(std::span(large));
  EXPECT_EQ(std::vector<uint32_t>(large.begin(), large.begin() + 8),
            (std::vector<uint32_t>{521, 737, 740, 660, 411, 678, 626, 513}));
  uint64_t weighted = 0;
  for (uint64_t i = 0; i < large.size(); ++i) weighted += i * large[i];
  EXPECT_EQ(weighted, 251374799u);
  std::vector<int64_t> small = Iota<int64_t>(7);
  shuffler.Shuffle(std::span(small));
  EXPECT_EQ(small, (std::vector<int64_t>{0, 2, 5, 6, 4, 1, 3}));
}

TEST(NumpyShuffleTest, EmptyAndSingleArraysDrawNothing) {
  NumpyShuffler shuffler(1234);
  std::vector<int64_t> none, one{5}, ten = Iota<int64_t>(10);
  shuffler.Shuffle(std::span(none));
  shuffler.Shuffle(std::span(one));
  shuffler.Shuffle(std::span(ten));
  EXPECT_EQ(one, std::vector<int64_t>{5});
  EXPECT_EQ(ten, Shuffled(1234, 10));
}

}  // namespace
}  // namespace cairn
