// A sum over the bits of a tensor, by which ranks that hold copies of it notice that one differs.
//
// It costs one read of the memory; on a GPU it is an ordinary sum of integers (python/cairn/torch/_sums.py
// computes the same one with torch). One flipped bit always changes it, and so does a value that is in
// another row. It is not a digest: several changes may cancel each other out.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn {

// The sum over all rows r of (2 r + 1) times the row's elements, as signed integers, modulo 2^64. A row is
// the last dimension. `element_bytes`: 1, 2, 4 or 8; the memory may have any alignment.
uint64_t ValueSum(const void* values, uint64_t rows, uint64_t columns, size_t element_bytes);

}  // namespace cairn
