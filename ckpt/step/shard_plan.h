// The layout of a shard before any of it is written: an HDF5 file laid out in memory, with the offsets of its
// pieces and the digests of its pieces and its envelope.
//
// Used by all writers of shards: from a memory image (shard_image.h) and piece by piece (shard_writer.h).
// FORMAT.md, "Shards".
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/h5/h5_image.h"
#include "ckpt/io/file_system.h"
#include "ckpt/model/catalog.h"
#include "ckpt/model/manifest.h"

namespace cairn {

// Binds a shard to its checkpoint.
struct StepIdentity {
  std::string run;
  int64_t step = 0;
};

// A finished shard for the committer: its entry in the manifest, and its pieces with offsets and digests.
struct ShardReceipt {
  ManifestFile file;
  Catalog catalog;         // files = {file.name}
  uint64_t nonfinite = 0;  // values that are infinite or NaN, if the writer counts them

  // Sent from the writers to the committer.
  std::string Encode() const;
  static Result<ShardReceipt> Decode(std::string_view bytes);
};

// The contents of a shard: its own catalog, which is filled in while it is written. Pieces are addressed by
// their index as given, from 0.
class ShardContents {
 public:
  // Reads tensor (an index into `tensors`), box and range of `pieces`. Leaves out tensors that no piece
  // names.
  ShardContents(const std::string& name, const StepIdentity& identity,
                const std::vector<TensorEntry>& tensors, std::vector<Piece> pieces);

  const Catalog& catalog() const { return catalog_; }  // pieces sorted
  Catalog& catalog() { return catalog_; }
  const std::string& name() const { return catalog_.files[0]; }
  size_t piece_count() const { return sorted_at_.size(); }
  Piece& piece(size_t given) { return catalog_.pieces[sorted_at_[given]]; }
  const Piece& piece(size_t given) const { return catalog_.pieces[sorted_at_[given]]; }
  const TensorEntry& tensor(size_t given) const { return catalog_.tensors[piece(given).tensor]; }

  // For another checkpoint of the same pieces: later digests use its identity.
  void Bind(const StepIdentity& identity);
  uint64_t ChunkSeed(size_t given, uint64_t chunk) const { return seeds_[given] + chunk; }

 private:
  Catalog catalog_;
  std::vector<size_t> sorted_at_;  // given index -> index in catalog_.pieces
  std::vector<uint64_t> seeds_;    // of each piece, as given
};

// The digest of the bytes that no piece of the shard covers, in order of offset: `metadata`, the shard's own
// encoded catalog at `catalog_offset`, and zeros.
Digest EnvelopeDigest(const Catalog& shard, const H5Layout& layout, uint64_t catalog_offset,
                      std::string_view own_catalog);

// Offsets of pieces (Piece::file_offset) are multiples of kPageBytes.
class ShardPlan : public ShardContents {
 public:
  static Result<ShardPlan> Make(ShardContents contents);
  static Result<ShardPlan> Make(const std::string& name, const StepIdentity& identity,
                                const std::vector<TensorEntry>& tensors, std::vector<Piece> pieces) {
    return Make(ShardContents(name, identity, tensors, std::move(pieces)));
  }

  uint64_t file_bytes() const { return layout_.file_bytes; }  // a multiple of kPageBytes
  uint64_t OffsetOf(size_t given) const { return piece(given).file_offset; }
  // Safe from several threads for different chunks.
  void SetDigest(size_t given, uint64_t chunk, const Digest& digest) { piece(given).chunks[chunk] = digest; }

  // The bytes that HDF5 wrote, by offset. Everything outside of them, of the pieces and of the shard's own
  // catalog is zeros.
  const std::vector<H5Extent>& metadata() const { return layout_.metadata; }
  // Offset of the shard's own catalog, which is last in the file.
  uint64_t catalog_offset() const { return layout_.offsets.back(); }

  // Once every digest is set: the encoded catalog, padded with zeros to whole pages, and the shard's entry
  // in the manifest.
  std::string EncodeOwnCatalog() const;
  ManifestFile EntryOf(std::string_view own_catalog) const;

 private:
  explicit ShardPlan(ShardContents contents) : ShardContents(std::move(contents)) {}

  H5Layout layout_;
};

}  // namespace cairn
