// Where every byte of a shard will lie, before any of it is written: an HDF5 file laid out in memory, with
// the offsets of its pieces and the digests that its pieces and its frame get.
//
// Shared by those who write shards: from a memory image (shard_image.h) and piece by piece (shard_writer.h).
// FORMAT.md, "Shards".
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/file_system.h"
#include "ckpt/h5_image.h"
#include "ckpt/manifest.h"

namespace cairn {

// What binds a shard to its checkpoint.
struct StepIdentity {
  std::string run;
  int64_t step = 0;
};

// What a committer must know of a finished shard: its entry in the manifest and its pieces with offsets and
// digests.
struct ShardReceipt {
  ManifestFile file;
  Catalog catalog;  // files = {file.name}

  // For the way from the writers to the committer.
  std::string Encode() const;
  static Result<ShardReceipt> Decode(std::string_view bytes);
};

class ShardPlan {
 public:
  // Of `pieces`, tensor (into `tensors`), box and range are read; the rest is filled in. Tensors that no
  // piece names are left out of the shard.
  static Result<ShardPlan> Make(const std::string& name, const StepIdentity& identity,
                                const std::vector<TensorEntry>& tensors, std::vector<Piece> pieces);

  const std::string& name() const { return catalog_.files[0]; }
  uint64_t file_bytes() const { return layout_.file_bytes; }  // a multiple of kPageBytes
  size_t piece_count() const { return catalog_.pieces.size(); }

  // Of the given pieces, by their index as given: place and name. Offsets are multiples of kPageBytes.
  const Piece& piece(size_t given) const { return catalog_.pieces[sorted_at_[given]]; }
  const TensorEntry& tensor(size_t given) const { return catalog_.tensors[piece(given).tensor]; }
  uint64_t OffsetOf(size_t given) const { return piece(given).file_offset; }

  // Another checkpoint of the same pieces: digests are then taken with its identity.
  void Bind(const StepIdentity& identity);
  // Digests of chunks of a piece; safe from several threads for different chunks.
  uint64_t ChunkSeed(size_t given, uint64_t chunk) const;
  void SetDigest(size_t given, uint64_t chunk, const Digest& digest);

  // The bytes that HDF5 wrote, by offset. Everything outside of them, of the pieces and of the shard's own
  // catalog is zeros.
  const std::vector<H5Extent>& metadata() const { return layout_.metadata; }
  // Where the shard's own catalog lies, the last thing in the file.
  uint64_t catalog_offset() const { return layout_.offsets.back(); }

  // Once every digest is set: the encoded catalog, padded with zeros to whole pages, and the receipt.
  std::string EncodeOwnCatalog() const;
  ShardReceipt Receipt(std::string_view own_catalog) const;

 private:
  Digest FrameDigest(std::string_view own_catalog) const;

  Catalog catalog_;                // pieces sorted; what the shard says of itself
  std::vector<size_t> sorted_at_;  // given index -> index in catalog_.pieces
  std::vector<uint64_t> seeds_;    // of each piece, as given
  H5Layout layout_;
};

}  // namespace cairn
