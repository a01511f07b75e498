// Infinities and NaNs among the elements of a tensor: what distinguishes a diverged state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ckpt/base/dtype.h"

namespace cairn {

// Whole elements, at any alignment. 0 for types that have no such values.
uint64_t CountNonFinite(Dtype dtype, std::span<const std::byte> elements);

}  // namespace cairn
