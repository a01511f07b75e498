#include "ckpt/chunk_decoder.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ckpt/file_system.h"
#include "ckpt/plane_codec.h"

namespace cairn {
namespace {

constexpr uint64_t kSliceBytes = 128 << 10;  // read from memory once: digested, then used out of the cache

}  // namespace

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
  thread_local PlaneDecoder decoder;
  CAIRN_RETURN_IF_ERROR(decoder.Decode(stored, element_bytes, out).WithContext("was stored damaged"));
  if (DigestOf(out, seed) == piece.chunks[chunk]) return OkStatus();
  return Corrupt("does not decode to what its digest says");
}

Status ChunkDecoder::Decode(const Piece& piece, uint64_t chunk, std::span<const std::byte> stored,
                            const Sink& sink) const {
  const TensorEntry& tensor = catalog_.tensors[piece.tensor];
  const uint64_t seed = PieceSeed(run_, step_, tensor, piece.box, piece.range) + chunk;
  const ChunkPlace place = PlaceOfChunk(piece, chunk, SizeOf(tensor.dtype));
  const auto named = [&](const Status& status) {
    return Corrupt("{} at byte {}: tensor {} {}; the file is damaged or belongs to another checkpoint",
                   JoinPath(directory_, catalog_.files[piece.file]), place.offset, DisplayName(tensor),
                   status.message());
  };
  thread_local std::vector<std::byte> decoded;
  if (place.encoded) {
    decoded.resize(place.bytes);
    const Status status = DecodeChunk(piece, chunk, SizeOf(tensor.dtype), seed, stored, decoded);
    if (!status.ok()) return named(status);
    if (sink) sink(0, decoded);
    return OkStatus();
  }
  Hasher hasher(seed);
  for (uint64_t at = 0; at < stored.size(); at += kSliceBytes) {
    const auto slice = stored.subspan(at, std::min<uint64_t>(kSliceBytes, stored.size() - at));
    hasher.Update(slice);
    if (sink) sink(at, slice);
  }
  return hasher.Finish() == piece.chunks[chunk] ? OkStatus() : named(Corrupt("does not match its digest"));
}

}  // namespace cairn
