// A chunk that is not encoded passes in slices: each is digested and used while it is still in the cache; the
// verdict comes after the last one. The stored bytes of an encoded chunk are compared with their digest
// before the decoder sees them, and the elements with theirs afterwards. Decode() can only check the stored
// bytes of a joined chunk; Join() makes the elements and checks them.

#include "ckpt/step/chunk_decoder.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ckpt/codec/derived_weight.h"
#include "ckpt/codec/plane_codec.h"
#include "ckpt/io/file_system.h"
#include "ckpt/model/piece.h"

namespace cairn {

ChunkPlace PlaceOfChunk(const Piece& piece, uint64_t chunk, uint64_t element_bytes) {
  const uint64_t begin = chunk * kChunkBytes;
  const uint64_t bytes = std::min(kChunkBytes, piece.range.size() * element_bytes - begin);
  const uint64_t first = piece.range.begin + begin / element_bytes;
  const FlatRange elements{first, first + bytes / element_bytes};
  if (piece.codec == Codec::kNone) return {piece.file_offset + begin, bytes, bytes, elements, false};
  const StoredChunk& stored = piece.stored[chunk];
  return {stored.file_offset, stored.bytes, bytes, elements, stored.encoded};
}

Status DecodeChunk(const Piece& piece, uint64_t chunk, uint64_t element_bytes, uint64_t seed,
                   std::span<const std::byte> stored, std::span<std::byte> out) {
  static_assert(kChunkBytes <= kMaxCodecChunkBytes);
  if (!PlaceOfChunk(piece, chunk, element_bytes).encoded) {
    if (out.data() != stored.data()) std::memcpy(out.data(), stored.data(), out.size());
    return DigestOf(out, seed) == piece.chunks[chunk] ? OkStatus() : Corrupt("does not match its digest");
  }
  if (DigestOf(stored, seed) != piece.stored[chunk].digest) return Corrupt("does not match its digest");
  if (IsJoined(piece.codec)) return OkStatus();
  thread_local PlaneDecoder decoder;
  CAIRN_RETURN_IF_ERROR(decoder.Decode(stored, element_bytes, out).WithContext("was stored damaged"));
  if (DigestOf(out, seed) == piece.chunks[chunk]) return OkStatus();
  return Corrupt("decodes to bytes that do not match its digest");
}

uint64_t ChunkDecoder::SeedOf(const Piece& piece, uint64_t chunk) const {
  return PieceSeed(run_, step_, catalog_.tensors[piece.tensor], piece.box, piece.range) + chunk;
}

Status ChunkDecoder::Named(const Piece& piece, uint64_t chunk, const Status& status) const {
  if (status.ok()) return status;
  const TensorEntry& tensor = catalog_.tensors[piece.tensor];
  return {status.kind(),
          fmt::format("{} at byte {}: tensor {} {}; the file is damaged or belongs to another checkpoint",
                      JoinPath(directory_, catalog_.files[piece.file]),
                      PlaceOfChunk(piece, chunk, SizeOf(tensor.dtype)).offset, DisplayName(tensor),
                      status.message())};
}

Status ChunkDecoder::Decode(const Piece& piece, uint64_t chunk, std::span<const std::byte> stored,
                            const Sink& sink) const {
  const uint64_t seed = SeedOf(piece, chunk), element_bytes = SizeOf(catalog_.tensors[piece.tensor].dtype);
  const ChunkPlace place = PlaceOfChunk(piece, chunk, element_bytes);
  if (IsJoined(piece.codec) && sink)
    return NotSupported("tensor {} must be joined with its weight or master",
                        DisplayName(catalog_.tensors[piece.tensor]));
  thread_local std::vector<std::byte> decoded;
  if (place.encoded) {
    decoded.resize(place.bytes);
    CAIRN_RETURN_IF_ERROR(
        Named(piece, chunk, DecodeChunk(piece, chunk, element_bytes, seed, stored, decoded)));
    if (sink) sink(0, decoded);
    return OkStatus();
  }
  return DecodePlain(
      piece, chunk, [&](uint64_t offset, uint64_t bytes) { return stored.subspan(offset, bytes); }, sink);
}

Status ChunkDecoder::DecodePlain(const Piece& piece, uint64_t chunk, const Slices& next,
                                 const Sink& sink) const {
  Hasher hasher(SeedOf(piece, chunk));
  const uint64_t bytes = PlaceOfChunk(piece, chunk, SizeOf(catalog_.tensors[piece.tensor].dtype)).bytes;
  for (uint64_t at = 0; at < bytes; at += kSliceBytes) {
    CAIRN_ASSIGN_OR_RETURN(const std::span<const std::byte> slice,
                           next(at, std::min(kSliceBytes, bytes - at)));
    hasher.Update(slice);
    if (sink) sink(at, slice);
  }
  if (hasher.Finish() == piece.chunks[chunk]) return OkStatus();
  return Named(piece, chunk, Corrupt("does not match its digest"));
}

Status ChunkDecoder::Join(const Piece& piece, uint64_t chunk, std::span<const std::byte> stored,
                          std::span<const std::byte> other, std::span<std::byte> out) const {
  const StoredChunk& place = piece.stored[chunk];
  const uint64_t seed = SeedOf(piece, chunk);
  const bool derived = piece.codec == Codec::kDerived;
  if (derived) {
    DeriveWeight(other, ExceptionsOf(piece, place), out);
  } else {
    if (DigestOf(stored, seed) != place.digest)
      return Named(piece, chunk, Corrupt("does not match its digest"));
    JoinMaster(other, stored, ExceptionsOf(piece, place), out);
  }
  if (DigestOf(out, seed) == piece.chunks[chunk]) return OkStatus();
  return Named(piece, chunk,
               Corrupt("joined with its {}, does not match its digest", derived ? "master" : "weight"));
}

}  // namespace cairn
