// Statistics of the values of a tensor, gathered while they stream by.
#pragma once

#include <cstdint>
#include <span>

#include "ckpt/base/dtype.h"

namespace cairn {

struct ValueStats {
  uint64_t count = 0;
  uint64_t nan = 0;
  uint64_t infinite = 0;  // not in min, max and squares, and neither are NaN
  uint64_t zeros = 0;     // of either sign
  double min = 0;         // of the finite values; 0 if there is none
  double max = 0;
  double sum = 0;
  double squares = 0;  // sum of their squares
  double fourths = 0;  // of their fourth powers

  void Add(Dtype dtype, std::span<const std::byte> bytes);
  void Join(const ValueStats& other);
  double norm() const;  // L2, of the finite values

 private:
  void AddChunk(Dtype dtype, std::span<const std::byte> bytes);
  uint64_t finite() const { return count - nan - infinite; }
};

}  // namespace cairn
