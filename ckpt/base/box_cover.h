// Whether boxes cover something exactly once: their volumes add up to its volume, and no two overlap.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "ckpt/base/box.h"

namespace cairn {

// The indices of two boxes with a common element; nullopt if there are none. Boxes are swept in order of
// their first dimension, so that only those that share rows are compared. Requires equal ranks.
std::optional<std::pair<size_t, size_t>> FindOverlap(std::span<const Box> boxes);

// The first index, in row-major order, that is in none of the boxes, which lie in `shape` and do not overlap;
// nullopt if there is none, or the boxes are too many to look (4096).
std::optional<Dims> FirstGap(std::span<const Box> boxes, const Dims& shape);

}  // namespace cairn
