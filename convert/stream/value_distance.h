// The distance between the values of two tensors, gathered block by block.
#pragma once

#include <cstdint>
#include <span>

#include "ckpt/base/dtype.h"

namespace cairn {

class ValueDistance {
 public:
  ValueDistance(Dtype a, Dtype b, double absolute, double relative)
      : a_(a), b_(b), absolute_(absolute), relative_(relative) {}

  // Adds elements from row-major index `begin` on, the same number of both.
  void Add(uint64_t begin, std::span<const std::byte> a, std::span<const std::byte> b);

  // Adds the distance of later elements.
  void Join(const ValueDistance& behind);

  uint64_t elements = 0;
  uint64_t differing = 0;
  uint64_t beyond = 0;        // the tolerance
  uint64_t nan_payloads = 0;  // of differing: both are NaN; within any tolerance, at no distance
  uint64_t first = 0;         // differing
  uint64_t first_beyond = 0;
  double max_absolute = 0;
  double max_relative = 0;
  uint64_t max_ulp = 0;
  double relative_norm() const;
  double cosine() const;

 private:
  void AddChunk(uint64_t begin, std::span<const std::byte> a, std::span<const std::byte> b);
  void AddElement(uint64_t index, long double a, long double b);

  Dtype a_, b_;
  double absolute_, relative_;
  double squares_a_ = 0, squares_b_ = 0, product_ = 0, squares_of_difference_ = 0;
};

}  // namespace cairn
