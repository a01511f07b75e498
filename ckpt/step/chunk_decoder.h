// The one place where a chunk's stored bytes become the verified bytes of a tensor.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "ckpt/model/catalog.h"

namespace cairn {

// A slice of a chunk is digested, and then used out of the second-level cache.
inline constexpr uint64_t kSliceBytes = 512 << 10;

// Where chunk `chunk` of a piece lies in its file, and what it holds.
struct ChunkPlace {
  uint64_t offset = 0;  // in the file
  uint64_t stored_bytes = 0;
  uint64_t bytes = 0;    // decoded
  FlatRange elements;    // of the row-major order of the piece's box
  bool encoded = false;  // false: the stored bytes are the elements
};
// `element_bytes`: of the tensor's dtype. Requires chunk < piece.chunks.size().
ChunkPlace PlaceOfChunk(const Piece& piece, uint64_t chunk, uint64_t element_bytes);

// Fills `out`, which has the size of the chunk, with its elements. The stored bytes must match their digest
// before the decoder sees them, and the decoded ones the digest of the chunk. `seed` is that of the chunk
// (digest.h); `stored` may be `out` if the chunk is not encoded. Safe from several threads. Errors: Corrupt
// with a message that continues "tensor NAME". For a piece that must be joined, it checks the stored bytes
// and does not touch `out`.
Status DecodeChunk(const Piece& piece, uint64_t chunk, uint64_t element_bytes, uint64_t seed,
                   std::span<const std::byte> stored, std::span<std::byte> out);

// Verifies chunks of one step. Safe from several threads.
class ChunkDecoder {
 public:
  // All must outlive it. `directory` is for messages.
  ChunkDecoder(const std::string& directory, const std::string& run, int64_t step, const StepCatalog& catalog)
      : directory_(directory), run_(run), step_(step), catalog_(catalog) {}

  // Takes the decoded bytes of a chunk in order, in slices that are still in the cache: `offset` is that of
  // the slice in the chunk. They are not verified yet: discard the results unless Decode() returns OK.
  using Sink = std::function<void(uint64_t offset, std::span<const std::byte> bytes)>;

  // Decodes and verifies a chunk. An empty `sink`: only verifies.
  // Errors: Corrupt naming file, offset and tensor; NotSupported if the chunk must be joined.
  Status Decode(const Piece& piece, uint64_t chunk, std::span<const std::byte> stored,
                const Sink& sink) const;
  // Gives the stored bytes [offset, offset + bytes) of a chunk.
  using Slices = std::function<Result<std::span<const std::byte>>(uint64_t offset, uint64_t bytes)>;
  // The same for a chunk that is not encoded, which comes in slices of at most kSliceBytes. Errors: as above,
  // and those of `next`.
  Status DecodePlain(const Piece& piece, uint64_t chunk, const Slices& next, const Sink& sink) const;
  // Rebuilds a chunk of the master from its low halves and the bf16 weights, or derives a weight, of which
  // nothing is stored, from its fp32 masters; verifies the result. Errors: as above.
  Status Join(const Piece& piece, uint64_t chunk, std::span<const std::byte> stored,
              std::span<const std::byte> other, std::span<std::byte> out) const;

 private:
  uint64_t SeedOf(const Piece& piece, uint64_t chunk) const;
  Status Named(const Piece& piece, uint64_t chunk, const Status& status) const;

  const std::string& directory_;
  const std::string& run_;
  const int64_t step_;
  const StepCatalog& catalog_;
};

}  // namespace cairn
