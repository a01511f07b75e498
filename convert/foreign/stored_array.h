// One tensor in a file of another system. All readers list tensors as these, and writers plan them.
#pragma once

#include <string>
#include <vector>

#include "ckpt/base/box_map.h"
#include "ckpt/base/dtype.h"

namespace cairn {

struct StoredExtent {
  FlatRange range;           // elements of the array's row-major order
  uint32_t file = 0;         // into the list of files
  uint64_t file_offset = 0;  // bytes, of the range's first element; any alignment
  bool operator==(const StoredExtent&) const = default;
};

struct StoredArray {
  std::string name;
  Dtype dtype = Dtype::kF32;
  Dims shape = {};                         // as the file has it
  std::vector<StoredExtent> extents = {};  // in order, without overlaps
  bool transposed = false;                 // the file has the last two axes of the tensor swapped
  // The file's name of a type that Cairn does not support; empty for others. The dtype is then kU8, and
  // extents count bytes.
  std::string unknown_type = {};

  Dims tensor_shape() const { return transposed ? LastTwoSwapped(shape) : shape; }
  // `map`, whose array has tensor_shape(), for the shape that the file has.
  BoxMap Stored(const BoxMap& map) const { return transposed ? map.Transposed() : map; }
  std::string_view type_name() const { return unknown_type.empty() ? Name(dtype) : unknown_type; }
  uint64_t elements() const;  // that its extents have
  uint64_t bytes() const { return elements() * SizeOf(dtype); }
};

// Elements [begin, begin + shape's volume) in row-major order, as an array of that shape.
StoredArray StretchOf(const StoredArray& array, uint64_t begin, const Dims& shape);

// Adds the extents of `next`, whose first element is element `begin` of `array`.
void Append(StoredArray& array, const StoredArray& next, uint64_t begin);

}  // namespace cairn
