#include "ckpt/codec/shuffle.h"

#include <cstring>

#include "ckpt/base/simd.h"

namespace cairn {
namespace {

// Elements are taken as integers: the compiler turns shifts and truncations into its widest instructions.
CAIRN_SIMD_CLONES void Split2(const std::byte* in, size_t count, uint8_t* __restrict p0,
                              uint8_t* __restrict p1) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t x;
    std::memcpy(&x, in + i * 2, 2);
    p0[i] = static_cast<uint8_t>(x);
    p1[i] = static_cast<uint8_t>(x >> 8);
  }
}

CAIRN_SIMD_CLONES void Split4(const std::byte* in, size_t count, uint8_t* __restrict p0,
                              uint8_t* __restrict p1, uint8_t* __restrict p2, uint8_t* __restrict p3) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t x;
    std::memcpy(&x, in + i * 4, 4);
    p0[i] = static_cast<uint8_t>(x);
    p1[i] = static_cast<uint8_t>(x >> 8);
    p2[i] = static_cast<uint8_t>(x >> 16);
    p3[i] = static_cast<uint8_t>(x >> 24);
  }
}

CAIRN_SIMD_CLONES void Join2(const uint8_t* p0, const uint8_t* p1, size_t count, std::byte* __restrict out) {
  for (size_t i = 0; i < count; ++i) {
    const auto x = static_cast<uint16_t>(p0[i] | p1[i] << 8);
    std::memcpy(out + i * 2, &x, 2);
  }
}

CAIRN_SIMD_CLONES void Join4(const uint8_t* p0, const uint8_t* p1, const uint8_t* p2, const uint8_t* p3,
                             size_t count, std::byte* __restrict out) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t x = p0[i] | uint32_t{p1[i]} << 8 | uint32_t{p2[i]} << 16 | uint32_t{p3[i]} << 24;
    std::memcpy(out + i * 4, &x, 4);
  }
}

uint8_t* Bytes(std::byte* p) { return reinterpret_cast<uint8_t*>(p); }
const uint8_t* Bytes(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

}  // namespace

void SplitPlanes(const std::byte* elements, size_t count, size_t element_bytes, std::byte* const* planes) {
  if (element_bytes == 2) return Split2(elements, count, Bytes(planes[0]), Bytes(planes[1]));
  if (element_bytes == 4)
    return Split4(elements, count, Bytes(planes[0]), Bytes(planes[1]), Bytes(planes[2]), Bytes(planes[3]));
  for (size_t b = 0; b < element_bytes; ++b)
    for (size_t i = 0; i < count; ++i) planes[b][i] = elements[i * element_bytes + b];
}

void JoinPlanes(const std::byte* const* planes, size_t count, size_t element_bytes, std::byte* elements) {
  if (element_bytes == 2) return Join2(Bytes(planes[0]), Bytes(planes[1]), count, elements);
  if (element_bytes == 4)
    return Join4(Bytes(planes[0]), Bytes(planes[1]), Bytes(planes[2]), Bytes(planes[3]), count, elements);
  for (size_t b = 0; b < element_bytes; ++b)
    for (size_t i = 0; i < count; ++i) elements[i * element_bytes + b] = planes[b][i];
}

}  // namespace cairn
