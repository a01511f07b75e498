// "This box of a tensor is that box of an array, its axes perhaps in another order": what a fused matrix, a
// Conv1D weight, one matrix of a stack, a tensor parallel slice and a padded vocabulary are, in whatever
// format and in either direction.
//
// A tensor is canonical; an array is what some file or rank holds. Every n-th index of an axis is a box too,
// for an array may be seen in any shape with the same row-major order: if gate and up take turns in the rows
// of [2 f, h], then the gate is the box [0:f, 0:1, 0:h] of [f, 2, h].
#pragma once

#include "ckpt/base/box.h"

namespace cairn {

// For each axis of an array, the axis of the tensor that it is. Both count from the last axis; a box of fewer
// axes has axes of extent 1 in front. A permutation.
using Axes = std::array<uint8_t, kMaxRank>;
inline constexpr Axes kSameAxes = {0, 1, 2, 3, 4, 5, 6, 7}, kLastTwoSwapped = {1, 0, 2, 3, 4, 5, 6, 7};
static_assert(kMaxRank == 8);
// Swaps the last two entries of a shape or an offset. Requires two axes at least.
inline Dims LastTwoSwapped(Dims dims) {
  std::swap(dims[dims.rank() - 1], dims[dims.rank() - 2]);
  return dims;
}

struct BoxMap {
  Box box;       // of the tensor
  Box in_array;  // the same elements, in the array
  // An axis that only one of the boxes has is of extent 1: that of the layer in [layers, out, in].
  Axes axes = kSameAxes;

  // `part` of `box` in the array's coordinates.
  Box ToArray(const Box& part) const;
  // The same seen from the array.
  BoxMap Inverse() const;
  // The same in an array whose last two axes are swapped.
  BoxMap Transposed() const;
  // The array's order of the elements may be another than the tensor's.
  bool reorders() const { return axes != kSameAxes; }
  // Both boxes lie in these shapes, and have the same elements.
  bool Fits(const Dims& tensor, const Dims& array) const;
};

// One of a tensor and an array that have numbers.
struct ArrayPart : BoxMap {
  uint32_t tensor = 0;  // into a table of tensors
  uint32_t array = 0;   // into a list of arrays
};

// One of nested loops over elements that an array and a tensor have in common.
struct Loop {
  uint64_t count = 1;
  uint64_t in_array = 1;   // elements from one to the next in the row-major order of a box of the array
  uint64_t in_tensor = 1;  // and of a box of the tensor
};

struct BoxLoops {
  uint64_t in_array = 0, in_tensor = 0;  // of the first element
  std::vector<Loop> loops;               // in the array's order, the innermost last; at least one
};

// The elements of `common`, a part of the map's box, as the fewest loops. `tensor` contains `common`, `array`
// what it is in the array.
BoxLoops LoopsOf(const BoxMap& map, const Box& common, const Box& tensor, const Box& array);

// Calls visit(in_array, in_tensor) for the elements of these loops.
template <typename Visit>
void ForEach(std::span<const Loop> loops, uint64_t in_array, uint64_t in_tensor, const Visit& visit) {
  if (loops.empty()) return visit(in_array, in_tensor);
  const Loop& outer = loops.front();
  for (uint64_t i = 0; i < outer.count; ++i)
    ForEach(loops.subspan(1), in_array + i * outer.in_array, in_tensor + i * outer.in_tensor, visit);
}

}  // namespace cairn
