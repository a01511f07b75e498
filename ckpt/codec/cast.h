// Rounds elements from one float type to another: fp32, bf16 and fp16, each to each, to nearest, ties to
// even.
//
// Bit-equal to torch's casts, except that a NaN keeps its sign and the upper bits of its payload here
// (torch's own code paths disagree on those). Rounding goes through fp32, which holds every bf16 and fp16
// value exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ckpt/base/dtype.h"

namespace cairn {

struct CastCounts {
  uint64_t elements = 0;
  uint64_t overflowed = 0;   // finite, but beyond the largest finite result
  uint64_t subnormal = 0;    // results below the smallest normal number, that kept fewer bits; not zero
  uint64_t underflowed = 0;  // not zero, but the result is
  uint64_t nonfinite = 0;    // NaN or infinite already in the source
  bool operator==(const CastCounts&) const = default;
  CastCounts& operator+=(const CastCounts& other);
};

enum class OnOverflow { kInfinity, kSaturate };  // kSaturate: the largest finite number of that sign

bool CanCast(Dtype from, Dtype to);

// Requires CanCast(from, to), as many elements in `out` as in `in`, no overlap. Elements need no alignment.
// If both are the same type, the bytes are copied and only `elements` is counted.
CastCounts Cast(Dtype from, std::span<const std::byte> in, Dtype to, std::span<std::byte> out,
                OnOverflow on_overflow);

}  // namespace cairn
