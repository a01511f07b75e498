// "This box of a tensor is that box of an array, perhaps transposed": what a fused matrix, a Conv1D weight, a
// tensor parallel slice and a padded vocabulary are, in whatever format and in either direction.
//
// A tensor is canonical; an array is what some file or rank holds.
#pragma once

#include "ckpt/base/box.h"

namespace cairn {

struct BoxMap {
  Box box;                 // of the tensor
  Box in_array;            // the same elements, in the array; of the same rank
  bool transpose = false;  // the tensor's rows are the array's columns; both have two dimensions

  // `part` of the tensor in the array's coordinates. Offsets are modulo 2^64: what lies outside `box` may
  // come to lie before the array.
  Box ToArray(const Box& part) const;
  // The same seen from the array.
  BoxMap Inverse() const { return {in_array, box, transpose}; }
  // Both boxes lie in these shapes, and have the same elements.
  bool Fits(const Dims& tensor, const Dims& array) const;
};

// One of a tensor and an array that have numbers.
struct ArrayPart : BoxMap {
  uint32_t tensor = 0;  // into a table of tensors
  uint32_t array = 0;   // into a list of arrays
};

}  // namespace cairn
