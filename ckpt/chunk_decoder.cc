#include "ckpt/chunk_decoder.h"

#include <cstring>

#include "ckpt/plane_codec.h"

namespace cairn {

Status DecodeChunk(const Piece& piece, Dtype dtype, uint64_t chunk, uint64_t seed,
                   std::span<const std::byte> stored, std::span<std::byte> out) {
  if (const StoredChunk place = PlaceOf(piece, dtype, chunk); place.encoded) {
    if (DigestOf(stored, seed) != place.digest) return Corrupt("does not match its digest");
    static_assert(kChunkBytes <= kMaxCodecChunkBytes);
    thread_local PlaneDecoder decoder;
    CAIRN_RETURN_IF_ERROR(decoder.Decode(stored, SizeOf(dtype), out));
    return DigestOf(out, seed) == piece.chunks[chunk]
               ? OkStatus()
               : Corrupt("is whole but does not decode to what its digest says");
  }
  if (out.data() != stored.data()) std::memcpy(out.data(), stored.data(), out.size());
  return DigestOf(out, seed) == piece.chunks[chunk] ? OkStatus() : Corrupt("does not match its digest");
}

}  // namespace cairn
