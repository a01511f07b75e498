// The sums of fingerprint.h over runs of elements, fast.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn {

using ElementSum = unsigned __int128;

// The key of element i of a tensor with seed s is 1 + mix(s + i * kElementStep).
inline constexpr uint64_t kElementStep = 0x9e3779b97f4a7c15;

// The sum of key * bits over `count` elements of `element_bytes` (1, 2, 4 or 8) each, where `at` is what the
// first one's key is mixed from.
ElementSum SumOfElements(uint64_t element_bytes, const std::byte* data, uint64_t count, uint64_t at);

// The same sum without the instructions that only some machines have.
ElementSum PlainSumOfElements(uint64_t element_bytes, const std::byte* data, uint64_t count, uint64_t at);

}  // namespace cairn
