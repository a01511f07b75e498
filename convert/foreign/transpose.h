// The transpose of a matrix in memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn {

// `out` becomes the columns of `in`, one behind the other: rows x columns elements of `size` bytes (1, 2, 4
// or 8). The two do not overlap.
void Transpose(const std::byte* in, uint64_t rows, uint64_t columns, uint64_t size, std::byte* out);

}  // namespace cairn
