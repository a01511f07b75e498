// NumPy's legacy shuffle, bit for bit: numpy.random.RandomState(seed).shuffle(array), for one-dimensional
// arrays.
//
// Megatron's sample order is built from it, so a Megatron user who trains here sees the same data in the same
// order. Source: numpy/random/mtrand.pyx (_shuffle_raw) and src/distributions/distributions.c
// (random_interval).
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <utility>

namespace cairn {

// One stream: successive shuffles continue where the last one stopped, as with one RandomState.
class NumpyShuffler {
 public:
  // RandomState(seed) seeds MT19937 as std::mt19937 does.
  explicit NumpyShuffler(uint32_t seed) : generator_(seed) {}

  template <typename T>
  void Shuffle(std::span<T> values) {
    for (uint64_t i = values.size(); i-- > 1;) std::swap(values[i], values[Interval(i)]);
  }

 private:
  // Uniform in [0, max], by rejection under the smallest mask that covers max, which is above 0.
  uint64_t Interval(uint64_t max) {
    const uint64_t mask = std::numeric_limits<uint64_t>::max() >> std::countl_zero(max);
    uint64_t value;
    do {
      value = generator_();
      if (max > std::numeric_limits<uint32_t>::max())
        value = value << 32 | generator_();  // the high half first
    } while ((value &= mask) > max);
    return value;
  }

  std::mt19937 generator_;
};

}  // namespace cairn
