#include "convert/foreign/transpose.h"

#include <algorithm>
#include <cstring>

namespace cairn {
namespace {

constexpr uint64_t kTile = 32;  // rows and columns of a tile: both sides stay in the first-level cache

// Elements of T from two loops. Each tile is copied first: the rows of a matrix whose width is a power of two
// would push each other out of the cache.
template <typename T>
void TransposeAs(const std::byte* in, const Loop& columns, const Loop& rows, std::byte* out) {
  T tile[kTile][kTile];
  for (uint64_t r0 = 0; r0 < rows.count; r0 += kTile)
    for (uint64_t c0 = 0; c0 < columns.count; c0 += kTile) {
      const uint64_t r1 = std::min(kTile, rows.count - r0), c1 = std::min(kTile, columns.count - c0);
      for (uint64_t r = 0; r < r1; ++r)
        for (uint64_t c = 0; c < c1; ++c)
          std::memcpy(&tile[c][r],
                      in + ((r0 + r) * rows.in_tensor + (c0 + c) * columns.in_tensor) * sizeof(T), sizeof(T));
      for (uint64_t c = 0; c < c1; ++c) {
        std::byte* to = out + ((c0 + c) * columns.in_array + r0 * rows.in_array) * sizeof(T);
        if (rows.in_array == 1)
          std::memcpy(to, tile[c], r1 * sizeof(T));
        else
          for (uint64_t r = 0; r < r1; ++r, to += rows.in_array * sizeof(T))
            std::memcpy(to, &tile[c][r], sizeof(T));
      }
    }
}

// For elements of `size` bytes (1, 2, 4 or 8).
void Transpose(const std::byte* in, const Loop& columns, const Loop& rows, uint64_t size, std::byte* out) {
  switch (size) {
    case 1:
      return TransposeAs<uint8_t>(in, columns, rows, out);
    case 2:
      return TransposeAs<uint16_t>(in, columns, rows, out);
    case 4:
      return TransposeAs<uint32_t>(in, columns, rows, out);
    default:
      return TransposeAs<uint64_t>(in, columns, rows, out);
  }
}

}  // namespace

// The innermost loop is transposed with the one whose elements lie nearest to each other in `bytes`.
void BoxTransposer::Put(const BoxMap& map, const Box& common, const Box& have,
                        std::span<const std::byte> bytes, const Box& target, std::span<std::byte> array) {
  const uint64_t size = bytes.size() / have.Volume();
  BoxLoops of = LoopsOf(map, common, have, target);
  const auto nearest = std::ranges::min_element(of.loops, {}, &Loop::in_tensor);
  const Loop rows = of.loops.back(), columns = &*nearest == &of.loops.back() ? Loop{} : *nearest;
  of.loops.pop_back();
  if (columns.count > 1) of.loops.erase(nearest);
  ForEach(of.loops, of.in_array, of.in_tensor, [&](uint64_t to, uint64_t from) {
    Transpose(bytes.data() + from * size, columns, rows, size, array.data() + to * size);
  });
}

}  // namespace cairn
