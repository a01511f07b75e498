// From the stored bytes of a chunk to its elements, verified on both sides.
#pragma once

#include <span>

#include "ckpt/catalog.h"

namespace cairn {

// Fills `out` with chunk `chunk` of `piece`. `stored` are the bytes that PlaceOf() names, `seed` is that of
// the chunk (digest.h). No decoder sees bytes that do not match the digest they were stored with; what it
// makes of them must match the digest of the chunk. Requires out.size() to be the chunk's decoded size;
// `stored` may be `out` where the chunk is not encoded. Safe from several threads. Errors: Corrupt, without
// the file, offset and tensor, which the caller adds.
Status DecodeChunk(const Piece& piece, Dtype dtype, uint64_t chunk, uint64_t seed,
                   std::span<const std::byte> stored, std::span<std::byte> out);

}  // namespace cairn
