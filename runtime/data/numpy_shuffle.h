// NumPy's legacy shuffle, bit for bit: numpy.random.RandomState(seed).shuffle(array), for one-dimensional
// arrays.
//
// Megatron's sample order is built from it, so a Megatron user who trains here sees the same data in the same
// order. Source: numpy/random/mtrand.pyx (_shuffle_raw) and src/distributions/distributions.c
// (random_interval).
#pragma once

#include <cstdint>
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

  // Uniform in [0, max], by rejection under the smallest mask that covers max. Draws nothing for max = 0.
  uint64_t Interval(uint64_t max);

 private:
  uint64_t Draw64();

  std::mt19937 generator_;
};

}  // namespace cairn
