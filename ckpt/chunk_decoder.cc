#include "ckpt/chunk_decoder.h"

#include <algorithm>

#include "ckpt/file_system.h"

namespace cairn {
namespace {

constexpr uint64_t kSliceBytes =
    512 << 10;  // read from memory once: digested, then used out of the second-level cache

}  // namespace

ChunkPlace PlaceOfChunk(const Piece& piece, uint64_t chunk, uint64_t element_bytes) {
  const uint64_t begin = chunk * kChunkBytes;
  const uint64_t bytes = std::min(kChunkBytes, piece.range.size() * element_bytes - begin);
  const uint64_t first = piece.range.begin + begin / element_bytes;
  return {piece.file_offset + begin, bytes, bytes, {first, first + bytes / element_bytes}};
}

Status ChunkDecoder::Decode(const Piece& piece, uint64_t chunk, std::span<const std::byte> stored,
                            const Sink& sink) const {
  const TensorEntry& tensor = catalog_.tensors[piece.tensor];
  Hasher hasher(PieceSeed(run_, step_, tensor, piece.box, piece.range) + chunk);
  for (uint64_t at = 0; at < stored.size(); at += kSliceBytes) {
    const auto slice = stored.subspan(at, std::min<uint64_t>(kSliceBytes, stored.size() - at));
    hasher.Update(slice);
    if (sink) sink(at, slice);
  }
  if (hasher.Finish() == piece.chunks[chunk]) return OkStatus();
  return Corrupt(
      "{} at byte {}: tensor {} does not match its digest; the file is damaged or belongs to another "
      "checkpoint",
      JoinPath(directory_, catalog_.files[piece.file]),
      PlaceOfChunk(piece, chunk, SizeOf(tensor.dtype)).offset, DisplayName(tensor));
}

}  // namespace cairn
