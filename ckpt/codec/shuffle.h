// HDF5's shuffle: the bytes of an array regrouped into planes, plane b holding byte b of every element.
//
// In trained tensors the planes of signs and exponents carry little information and compress, those of low
// mantissa bits are noise. Elements of 2 and 4 bytes run at the speed of memory, others at that of plain C++.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn {

inline constexpr size_t kMaxElementBytes = 8;  // planes of an element; SizeOf(Dtype) is no larger

// planes[b][i] = elements[i * element_bytes + b] for i < count, and back. Requires planes and elements not to
// overlap, and 1 <= element_bytes <= kMaxElementBytes.
void SplitPlanes(const std::byte* elements, size_t count, size_t element_bytes, std::byte* const* planes);
void JoinPlanes(const std::byte* const* planes, size_t count, size_t element_bytes, std::byte* elements);

}  // namespace cairn
