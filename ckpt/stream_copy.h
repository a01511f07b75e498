// A copy past the caches, for memory that nobody reads soon.
//
// memcpy does so only beyond a size that the C library takes from the shared cache (190 MB on one machine),
// so that tensors of a few megabytes were copied at half the speed: each line of the target was read first.
#pragma once

#include <cstddef>

namespace cairn {

// Like memcpy. Visible to other threads by the usual means once it has returned.
void StreamCopy(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace cairn
