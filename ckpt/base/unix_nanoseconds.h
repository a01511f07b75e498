// A time of the file system as one number.
#pragma once

#include <cstdint>

namespace cairn {

// Wraps beyond the year 2262, which files may have: compare such numbers only for equality.
inline int64_t UnixNanoseconds(int64_t seconds, int64_t nanoseconds) {
  return static_cast<int64_t>(static_cast<uint64_t>(seconds) * 1'000'000'000 +
                              static_cast<uint64_t>(nanoseconds));
}

}  // namespace cairn
