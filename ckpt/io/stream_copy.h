// Memory copies past the cache, for bytes that are not read again soon.
#pragma once

#include <cstddef>
#include <span>

namespace cairn {

// memcpy with stores that do not bring the target's lines into the cache first: two memory transfers a byte
// instead of three. `to` and `from` do not overlap. Other threads see the bytes after StreamFence() only.
void StreamCopy(std::byte* to, std::span<const std::byte> from);
void StreamFence();

}  // namespace cairn
