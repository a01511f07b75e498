// Opens a committed step and reads boxes of its tensors, verified.
//
// Opening reads the manifest and the catalog only. Reading verifies every chunk that it touches against its
// digest before any of it is used. Shards are opened when first needed, never through HDF5.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "ckpt/catalog.h"
#include "ckpt/file_system.h"
#include "ckpt/manifest.h"

namespace cairn {

class StepReader {
 public:
  // Errors: NotFound (no manifest: not a committed step), Corrupt (manifest, catalog, a file's size),
  // NotSupported. Each names the file.
  static Result<std::unique_ptr<StepReader>> Open(FileSystem& fs, const std::string& directory);

  const Manifest& manifest() const { return manifest_; }
  const Catalog& catalog() const { return catalog_; }
  const std::string& directory() const { return directory_; }

  // Fills `out` with `box` of tensor `tensor` (index into the catalog), in row-major order.
  // Requires out.size() == bytes of the box. Errors: Corrupt naming file, tensor and offset; those of the
  // disk.
  Status ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out);

  // Bytes read from shards so far.
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct Chunk {
    size_t piece;
    uint64_t index;
    std::vector<std::byte> bytes;
  };

  StepReader(FileSystem& fs, std::string directory) : fs_(fs), directory_(std::move(directory)) {}
  Status ReadCatalog();
  Result<File*> Shard(uint32_t file);
  Status ReadPiecePart(size_t piece, const Segment& segment, const Box& common, const Box& box,
                       std::span<std::byte> out);
  Status CopyRun(size_t piece, uint64_t piece_offset, std::span<std::byte> out);
  Dtype DtypeOf(const Piece& piece) const;
  uint64_t ChunkBytes(size_t piece, uint64_t index) const;  // decoded
  // Chunk `index` of a piece into `out`, verified.
  Status ReadChunk(size_t piece, uint64_t index, std::span<std::byte> out);
  Result<const Chunk*> CachedChunk(size_t piece, uint64_t index);

  FileSystem& fs_;
  std::string directory_;
  Manifest manifest_;
  Catalog catalog_;
  std::unordered_map<uint32_t, std::unique_ptr<File>> shards_;
  std::list<Chunk>
      cache_;  // most recently used first; chunks that one read used in part and the next may go on with
  std::vector<std::byte> stored_;  // an encoded chunk
  uint64_t bytes_read_ = 0;
};

}  // namespace cairn
