// Arithmetic of FlatRange (box.h).
#pragma once

#include <algorithm>

#include "ckpt/base/box.h"

namespace cairn {

// The common part of two ranges; if they do not meet, an empty range that begins in the later one.
inline FlatRange Overlap(FlatRange a, FlatRange b) {
  const uint64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

inline bool Contains(FlatRange outer, FlatRange inner) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

}  // namespace cairn
