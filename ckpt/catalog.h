// A catalog: the tensors of a checkpoint and the pieces that hold their bytes.
//
// It is all that the engine knows of a checkpoint, whatever format it came from.
// Encoded form: FORMAT.md, "Catalog".
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/digest.h"
#include "ckpt/split_master.h"
#include "ckpt/tensor.h"

namespace cairn {

enum class Codec : uint8_t {
  kNone = 0,         // the elements as they are, one behind the other
  kShuffleZstd = 1,  // chunks, each by itself shuffled and compressed (plane_codec.h), or as it is
  kMasterLow = 2,    // of an fp32 master, what its bf16 weight does not say (split_master.h)
};
std::string_view Name(Codec codec);  // "none", "shuffle+zstd", "master-low"; "?" for no Codec

// Where a chunk of a piece lies that was stored by itself.
struct StoredChunk {
  uint64_t file_offset = 0;  // bytes
  uint32_t bytes = 0;
  bool encoded = false;  // false: the chunk's elements as they are; with kMasterLow, always true
  Digest digest{};       // of the stored bytes, with the seed of the chunk
  std::vector<MasterException> exceptions;  // with kMasterLow
  bool operator==(const StoredChunk&) const = default;
};

// A box of one tensor, or a flat range of its row-major order, and where the bytes lie.
struct Piece {
  uint32_t tensor = 0;  // into Catalog::tensors
  uint32_t file = 0;    // into Catalog::files
  Box box;
  FlatRange
      range;  // elements of the box's row-major order; [0, box.Volume()) where the piece is the whole box
  uint64_t file_offset = 0;  // bytes; with a codec, of its first chunk
  uint64_t stored_bytes = 0;
  Codec codec = Codec::kNone;
  std::vector<Digest> chunks;  // one per kChunkBytes of the decoded bytes; empty where the format has none
  std::vector<StoredChunk> stored;  // of each chunk; empty without a codec
  bool operator==(const Piece&) const = default;
};

inline uint64_t DecodedBytes(const Piece& piece, Dtype dtype) { return piece.range.size() * SizeOf(dtype); }
// Of chunk `chunk` of a piece of `decoded_bytes`.
inline uint64_t DecodedChunkBytes(uint64_t decoded_bytes, uint64_t chunk) {
  return std::min(kChunkBytes, decoded_bytes - chunk * kChunkBytes);
}
// More of them in a chunk of so many elements, and the master is stored whole.
inline size_t MaxMasterExceptions(uint64_t elements) { return elements / 1024 + 8; }

// The datasets that hold a piece with a codec: one of all whole chunks and one of the rest, as HDF5 demands
// that every chunk of a dataset decodes to the same size. Flat ranges of the piece's box; one may be missing.
std::vector<FlatRange> PackedParts(const Piece& piece, Dtype dtype);

struct Catalog {
  std::vector<TensorEntry> tensors;
  std::vector<std::string> files;  // relative to the step's directory
  std::vector<Piece> pieces;       // sorted by tensor, then by offset of the box, then by range

  bool operator==(const Catalog&) const = default;

  uint64_t bytes() const;  // of all tensors, each once
  // Pieces of tensor t are pieces[first, second).
  std::pair<size_t, size_t> PiecesOfTensor(uint32_t tensor) const;
  void SortPieces();
  // The distinct parameters in order of first appearance: what placement.h takes. RNG states are left out.
  std::vector<ParameterSpec> Parameters() const;
};

// Finds a catalog's tensors by parameter name and role.
class TensorLookup {
 public:
  explicit TensorLookup(const Catalog& catalog);
  // NotFound names the tensor.
  Result<uint32_t> Find(std::string_view name, Role role) const;

 private:
  std::unordered_map<std::string, uint32_t> index_;
};

// Every element of every tensor is covered exactly once, every piece lies in its tensor and has the bytes it
// needs. Errors: Corrupt naming tensor, box and file of the hole or overlap.
Status CheckCoverage(const Catalog& catalog);

std::string EncodeCatalog(const Catalog& catalog);
// The length of EncodeCatalog() without making it; digests may still be missing, their number is that of the
// chunks.
uint64_t EncodedCatalogBytes(const Catalog& catalog);
// Validates sizes before it allocates; never trusts a count. Errors: Corrupt with the offset in the catalog.
Result<Catalog> DecodeCatalog(std::string_view bytes);

}  // namespace cairn
