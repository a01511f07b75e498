// A value is infinite or NaN if all bits of its exponent are set. Blocks are so small that their counts
// fit into an integer of the elements' own width: the compiler then counts in whole vectors.
#include "ckpt/codec/nonfinite.h"

#include <algorithm>
#include <cstring>

#include "ckpt/base/simd.h"

namespace cairn {
namespace {

// A template cannot have clones, so the functions below have them, one per width.
template <typename Bits>
[[gnu::always_inline]] inline Bits CountIn(const std::byte* elements, size_t count, Bits exponent) {
  Bits found = 0;
  for (size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, elements + i * sizeof(Bits), sizeof(Bits));
    found = static_cast<Bits>(found + ((bits & exponent) == exponent ? 1 : 0));
  }
  return found;
}
CAIRN_SIMD_CLONES uint8_t InBlock(const std::byte* elements, size_t count, uint8_t exponent) {
  return CountIn(elements, count, exponent);
}
CAIRN_SIMD_CLONES uint16_t InBlock(const std::byte* elements, size_t count, uint16_t exponent) {
  return CountIn(elements, count, exponent);
}
CAIRN_SIMD_CLONES uint32_t InBlock(const std::byte* elements, size_t count, uint32_t exponent) {
  return CountIn(elements, count, exponent);
}
CAIRN_SIMD_CLONES uint64_t InBlock(const std::byte* elements, size_t count, uint64_t exponent) {
  return CountIn(elements, count, exponent);
}

template <typename Bits>
uint64_t Count(std::span<const std::byte> elements, Bits exponent) {
  constexpr size_t kBlockElements = sizeof(Bits) == 1 ? 192 : 16384;
  const size_t count = elements.size() / sizeof(Bits);
  uint64_t found = 0;
  for (size_t at = 0; at < count; at += kBlockElements)
    found += InBlock(elements.data() + at * sizeof(Bits), std::min(kBlockElements, count - at), exponent);
  return found;
}

}  // namespace

uint64_t CountNonFinite(Dtype dtype, std::span<const std::byte> elements) {
  switch (dtype) {
    case Dtype::kF64:
      return Count(elements, uint64_t{0x7ff0000000000000});
    case Dtype::kF32:
      return Count(elements, uint32_t{0x7f800000});
    case Dtype::kF16:
      return Count(elements, uint16_t{0x7c00});
    case Dtype::kBF16:
      return Count(elements, uint16_t{0x7f80});
    case Dtype::kF8E4M3:
      return Count(elements, uint8_t{0x7f});  // only NaN: no infinities
    case Dtype::kF8E5M2:
      return Count(elements, uint8_t{0x7c});
    default:
      return 0;
  }
}

}  // namespace cairn
