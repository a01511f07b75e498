#include "runtime/data/numpy_shuffle.h"

#include <bit>
#include <limits>

namespace cairn {

uint64_t NumpyShuffler::Interval(uint64_t max) {
  if (max == 0) return 0;
  const uint64_t mask = std::numeric_limits<uint64_t>::max() >> std::countl_zero(max);
  const bool wide = max > std::numeric_limits<uint32_t>::max();
  uint64_t value;
  do {
    value = (wide ? Draw64() : generator_()) & mask;
  } while (value > max);
  return value;
}

uint64_t NumpyShuffler::Draw64() {
  const uint64_t high = generator_();
  return high << 32 | generator_();
}

}  // namespace cairn
