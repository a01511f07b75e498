#include "convert/foreign/transpose.h"

#include <algorithm>
#include <cstring>

namespace cairn {
namespace {

constexpr uint64_t kTile = 32;  // rows and columns of a tile: both sides stay in the first-level cache

template <typename T>
void TransposeAs(const std::byte* in, uint64_t rows, uint64_t columns, std::byte* out) {
  for (uint64_t r0 = 0; r0 < rows; r0 += kTile)
    for (uint64_t c0 = 0; c0 < columns; c0 += kTile)
      for (uint64_t c = c0; c < std::min(c0 + kTile, columns); ++c)
        for (uint64_t r = r0; r < std::min(r0 + kTile, rows); ++r)
          std::memcpy(out + (c * rows + r) * sizeof(T), in + (r * columns + c) * sizeof(T), sizeof(T));
}

// `out` becomes the columns of `in`, one after another: rows x columns elements of `size` bytes (1, 2, 4
// or 8).
void Transpose(const std::byte* in, uint64_t rows, uint64_t columns, uint64_t size, std::byte* out) {
  switch (size) {
    case 1:
      return TransposeAs<uint8_t>(in, rows, columns, out);
    case 2:
      return TransposeAs<uint16_t>(in, rows, columns, out);
    case 4:
      return TransposeAs<uint32_t>(in, rows, columns, out);
    default:
      return TransposeAs<uint64_t>(in, rows, columns, out);
  }
}

}  // namespace

std::span<const std::byte> BoxTransposer::Transposed(const Box& common, const Box& have,
                                                     std::span<const std::byte> bytes, uint64_t size) {
  const uint64_t count = common.Volume() * size;
  const std::byte* rows = bytes.data();
  if (!(common == have)) {
    if (gathered_.size() < count) gathered_.resize(count);
    ForEachRun(common, have, common, [&](uint64_t from, uint64_t to, uint64_t run) {
      std::memcpy(gathered_.data() + to * size, bytes.data() + from * size, run * size);
    });
    rows = gathered_.data();
  }
  if (transposed_.size() < count) transposed_.resize(count);
  Transpose(rows, common.extent[0], common.extent[1], size, transposed_.data());
  return std::span(transposed_).first(count);
}

}  // namespace cairn
