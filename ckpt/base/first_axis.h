// Shapes and offsets with fewer axes, or more: of one element of a stack ([layers, ...], [experts, ...]).
#pragma once

#include "ckpt/base/box.h"

namespace cairn {

// Requires one axis at least.
inline Dims WithoutFirst(const Dims& dims) {
  Dims rest;
  for (int i = 1; i < dims.rank(); ++i) rest.push_back(dims[i]);
  return rest;
}

inline Dims First(const Dims& dims, int axes) {
  Dims first;
  for (int i = 0; i < axes; ++i) first.push_back(dims[i]);
  return first;
}

inline Dims WithFirst(uint64_t first, const Dims& rest) {
  Dims dims = {first};
  for (const uint64_t value : rest) dims.push_back(value);
  return dims;
}

}  // namespace cairn
