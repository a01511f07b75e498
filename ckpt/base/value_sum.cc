// Narrow elements are first added up in 32 bits, which the compiler turns into whole vectors; blocks are so
// short that this cannot overflow.
#include "ckpt/base/value_sum.h"

#include <algorithm>
#include <cstring>

#include "ckpt/base/simd.h"

namespace cairn {
namespace {

constexpr uint64_t kBlock = 16384;  // elements

// A template cannot have clones, so the functions below have them, one per width.
template <typename Element, typename Sum>
[[gnu::always_inline]] inline Sum AddUp(const std::byte* elements, uint64_t count) {
  Sum sum = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, elements + i * sizeof(Element), sizeof(Element));
    sum += static_cast<Sum>(element);
  }
  return sum;
}
CAIRN_SIMD_CLONES uint64_t BlockOf1(const std::byte* elements, uint64_t count) {
  return static_cast<uint64_t>(AddUp<int8_t, int32_t>(elements, count));
}
CAIRN_SIMD_CLONES uint64_t BlockOf2(const std::byte* elements, uint64_t count) {
  return static_cast<uint64_t>(AddUp<int16_t, int32_t>(elements, count));
}
CAIRN_SIMD_CLONES uint64_t BlockOf4(const std::byte* elements, uint64_t count) {
  return static_cast<uint64_t>(AddUp<int32_t, int64_t>(elements, count));
}
CAIRN_SIMD_CLONES uint64_t BlockOf8(const std::byte* elements, uint64_t count) {
  return AddUp<uint64_t, uint64_t>(elements, count);
}

}  // namespace

uint64_t ValueSum(const void* values, uint64_t rows, uint64_t columns, size_t element_bytes) {
  const auto add = element_bytes == 1   ? BlockOf1
                   : element_bytes == 2 ? BlockOf2
                   : element_bytes == 4 ? BlockOf4
                                        : BlockOf8;
  const auto* at = static_cast<const std::byte*>(values);
  uint64_t sum = 0;
  for (uint64_t row = 0; row < rows; ++row) {
    uint64_t of_row = 0;
    for (uint64_t done = 0; done < columns; done += kBlock) {
      const uint64_t count = std::min(kBlock, columns - done);
      of_row += add(at, count);
      at += count * element_bytes;
    }
    sum += (2 * row + 1) * of_row;
  }
  return sum;
}

}  // namespace cairn
