// Writes one shard: an HDF5 file of the pieces that one writer holds.
//
// The file is laid out by HDF5 in memory and every byte of it written by our own I/O path (write_ring.h),
// once, aligned, and in any order of pieces; digests are taken on the way. Nothing is durable before
// Finish().
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/h5_image.h"
#include "ckpt/manifest.h"
#include "ckpt/write_ring.h"

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

class ShardWriter {
 public:
  // Lays out and creates `directory`/`name`. Of `pieces`, tensor (into `tensors`), box and range are read;
  // the rest is filled in. Tensors that no piece names are left out of the shard.
  static Result<std::unique_ptr<ShardWriter>> Create(FileSystem& fs, WriteRing& ring,
                                                     const std::string& directory, const std::string& name,
                                                     const StepIdentity& identity,
                                                     const std::vector<TensorEntry>& tensors,
                                                     std::vector<Piece> pieces,
                                                     Direct direct = Direct::kAuto);

  ~ShardWriter() { (void)ring_.Drain(); }  // writes in flight refer to the file
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // The next bytes of piece `piece` (index into the given ones), in row-major order. Returns once copied.
  // Errors: InvalidArgument beyond the piece's end; an earlier write's.
  Status Append(size_t piece, std::span<const std::byte> bytes);

  // Writes the rest of the file, syncs and closes it. Errors: InvalidArgument where a piece is incomplete;
  // those of the disk. After an error the file is condemned: remove the whole partial directory.
  Result<ShardReceipt> Finish();

  uint64_t file_bytes() const { return layout_.file_bytes; }

 private:
  struct Cursor {  // how far a piece is written
    uint64_t appended = 0;
    std::unique_ptr<Hasher> hasher;
    std::unique_ptr<WriteRing::Buffer> buffer;
  };

  ShardWriter(WriteRing& ring, StepIdentity identity) : ring_(ring), identity_(std::move(identity)) {}
  Status LayOut(const std::string& name, const std::vector<TensorEntry>& tensors, std::vector<Piece> pieces);
  void Digest(size_t piece, std::span<const std::byte> bytes);
  void Flush(size_t piece, Cursor& cursor);
  Status WriteFrame();

  WriteRing& ring_;
  StepIdentity identity_;
  std::unique_ptr<File> file_;
  H5Layout layout_;
  Catalog catalog_;                // pieces sorted; what the shard says of itself
  std::vector<size_t> sorted_at_;  // given index -> index in catalog_.pieces
  std::vector<Cursor> cursors_;
  ManifestFile receipt_;
};

}  // namespace cairn
