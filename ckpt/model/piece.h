// A piece: a box of one tensor, or a flat range of its row-major order, and the place of its bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ckpt/base/box.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/dtype.h"
#include "ckpt/codec/split_master.h"

namespace cairn {

struct TensorEntry;

enum class Codec : uint8_t {
  kNone = 0,         // the elements as they are, one after another
  kShuffleZstd = 1,  // chunks, each shuffled and compressed by itself (plane_codec.h), or stored as it is
  kMasterLow = 2,    // the part of an fp32 master that its bf16 weight lacks (split_master.h)
  kDerived = 3,      // nothing: an fp16 weight that follows from its fp32 master (derived_weight.h)
};
// True if a piece can be decoded only with its parameter's weight, or master.
inline bool IsJoined(Codec codec) { return codec == Codec::kMasterLow || codec == Codec::kDerived; }
std::string_view Name(Codec codec);  // "none", "shuffle+zstd", "master-low", "derived"; "?" for no Codec

// A chunk that was stored by itself.
struct StoredChunk {
  uint64_t file_offset = 0;  // bytes
  uint32_t bytes = 0;
  bool encoded = false;          // false: the chunk's elements as they are; joined ones never are
  Digest digest{};               // of the stored bytes, if any, with the seed of the chunk
  uint32_t first_exception = 0;  // of joined ones: into the piece's exceptions
  uint32_t exceptions = 0;       // how many
  bool operator==(const StoredChunk&) const = default;
};

struct Piece {
  uint32_t tensor = 0;  // into the catalog's tensors
  uint32_t file = 0;    // into the catalog's files
  Box box;
  // Elements of the box's row-major order; [0, box.Volume()) if the piece is the whole box.
  FlatRange range;
  uint64_t file_offset = 0;  // bytes; with a codec, of its first chunk; 0 with kDerived
  uint64_t stored_bytes = 0;
  Codec codec = Codec::kNone;
  std::vector<Digest> chunks;       // one per kChunkBytes of the decoded bytes; empty if the format has none
  std::vector<StoredChunk> stored;  // of each chunk; empty without a codec
  std::vector<MasterException> exceptions;  // of joined ones: chunk by chunk, indices in the chunk
  bool operator==(const Piece&) const = default;
};

// The end of the last byte of a piece in its file.
inline uint64_t EndOf(const Piece& piece) {
  uint64_t end = piece.file_offset + piece.stored_bytes;
  for (const StoredChunk& chunk : piece.stored) end = std::max(end, chunk.file_offset + chunk.bytes);
  return end;
}

inline uint64_t DecodedBytes(const Piece& piece, Dtype dtype) { return piece.range.size() * SizeOf(dtype); }
// The bytes of chunk `chunk` of a piece of `decoded_bytes`.
inline uint64_t DecodedChunkBytes(uint64_t decoded_bytes, uint64_t chunk) {
  return std::min(kChunkBytes, decoded_bytes - chunk * kChunkBytes);
}
inline std::span<const MasterException> ExceptionsOf(const Piece& piece, const StoredChunk& chunk) {
  return std::span(piece.exceptions).subspan(chunk.first_exception, chunk.exceptions);
}
// The most exceptions of a chunk of this many elements; with more, the piece is stored whole.
inline size_t MaxMasterExceptions(uint64_t elements) { return elements / 1024 + 8; }

// The seed of chunk `chunk` of a piece is PieceSeed + chunk. It binds the digests of a piece to its identity:
// an intact chunk of another run, step, tensor or box does not pass for it.
uint64_t PieceSeed(std::string_view run, int64_t step, const TensorEntry& tensor, const Box& box,
                   FlatRange range);

// The datasets that hold a piece with a codec: one of all whole chunks and one of the rest, as HDF5 demands
// that every chunk of a dataset decodes to the same size. Flat ranges of the piece's box; one may be missing.
std::vector<FlatRange> PackedParts(const Piece& piece, Dtype dtype);

}  // namespace cairn
