// Opens a committed step and reads boxes of its tensors, verified.
//
// Opening reads the manifest and the catalog only. Reading verifies every chunk that it touches against its
// digest before any of it is used. Shards are opened when first needed, never through HDF5.
//
// Load() fills many boxes with several threads, to load a state. ReadBox() reads one box after the other
// within a fixed window of memory, for streams. Both belong to one thread at a time; manifest, catalog and
// directory may be read by any number of threads meanwhile.
#pragma once

#include <algorithm>
#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/io/open_files.h"
#include "ckpt/model/catalog.h"
#include "ckpt/model/manifest.h"
#include "ckpt/model/source.h"
#include "ckpt/step/chunk_ahead.h"
#include "ckpt/step/chunk_decoder.h"
#include "ckpt/step/step_loader.h"

namespace cairn {

// The catalog in the bytes of an index. Errors: Corrupt.
Result<StepCatalog> CatalogIn(const Manifest& manifest, std::string_view index);

class StepReader final : public CheckpointSource {
 public:
  // Errors: NotFound (no manifest: not a committed step), Corrupt (manifest, catalog, a file's size),
  // NotSupported. Each names the file.
  static Result<std::unique_ptr<StepReader>> Open(FileSystem& fs, const std::string& directory);

  const Manifest& manifest() const override { return manifest_; }
  const StepCatalog& catalog() const override { return catalog_; }
  const Regions& regions() const override { return regions_; }
  const std::string& directory() const override { return directory_; }
  const StepReader* native_step() const override { return this; }
  // Replaces the step's model by `model` and adds lines to its history. The tensors stay as they are.
  void Redescribe(Model model, const std::vector<std::string>& history);
  // The directory of a file of the manifest: the shards of a virtual step are another step's.
  std::string DirectoryOf(std::string_view file) const { return manifest_.DirectoryOf(directory_, file); }

  Status ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out) override;

  void ReadAhead(BoxSequence next) override;

  // Fills many boxes at once (step_loader.h). Errors: those of StepLoader::Load.
  Status Load(std::span<const ReadRequest> requests, const LoadOptions& options = {});
  // True if a tensor is stored as a part that must be joined with another tensor. Then one thread at a time
  // may call Load().
  bool JoinsTensors() const;

  // The memory for chunks that one ReadBox() used in part and the next one may need; kChunkBytes at least.
  // A block of rows meets as many pieces side by side as TP has ranks: with memory for fewer chunks than TP +
  // 1, chunks are read again.
  void SetCacheBytes(uint64_t bytes) override;
  // The part of the cache for chunks that are read ahead.
  static uint64_t AheadBytes(uint64_t cache_bytes) {
    return std::clamp<uint64_t>(cache_bytes / 4, 2 * kChunkBytes, 8 * kChunkBytes);
  }

  uint64_t bytes_read() const override { return bytes_read_; }

 private:
  struct NumberedPiece : Piece {
    size_t number = 0;  // in the catalog
  };
  struct Chunk {
    size_t piece = 0;  // its number
    uint64_t index = 0;
    ChunkAhead::Buffer memory;
    bool read_ahead = false;     // its memory is recycled
    std::span<std::byte> bytes;  // in `memory`
    uint64_t used = 0;           // bytes that were copied out of it
  };

  StepReader(FileSystem& fs, std::string directory) : fs_(fs), directory_(std::move(directory)) {}
  Status CheckFileSizes() const;
  Status ReadCatalog();
  Status CheckPlaces();
  Status ReadPiecePart(const NumberedPiece& piece, const Segment& segment, const Box& common, const Box& box,
                       std::span<std::byte> out);
  Status CopyRun(const NumberedPiece& piece, uint64_t piece_offset, std::span<std::byte> out);
  Status ReadOther(const Piece& joined, FlatRange elements, std::span<std::byte> out);
  bool IsJoinedTensor(uint32_t tensor) const;
  uint64_t ElementBytes(const Piece& piece) const;
  ChunkPlace PlaceOf(const Piece& piece, uint64_t chunk) const;
  // Reads chunk `index` of a piece into `out`, verified.
  Status ReadChunk(const NumberedPiece& piece, uint64_t index, std::span<std::byte> out);
  // The same, into memory of the chunk.
  Status FillChunk(const NumberedPiece& piece, Chunk& chunk);
  // Decodes the stored bytes of a chunk.
  Status DecodeStored(const Piece& piece, uint64_t index, std::span<const std::byte> stored,
                      std::span<std::byte> out);
  Result<Chunk*> CachedChunk(const NumberedPiece& piece, uint64_t index);
  void DropChunk(std::list<Chunk>::iterator chunk);

  FileSystem& fs_;
  std::string directory_;
  Manifest manifest_;
  StepCatalog catalog_;
  const PieceRegions regions_{catalog_};
  std::vector<uint64_t> file_bytes_;  // of the catalog's files
  std::optional<OpenFiles> files_;    // of the shards, once their directory is known
  std::list<Chunk> cache_;            // most recently used first
  uint64_t cache_bytes_ = 16 * kChunkBytes;
  uint64_t kept_limit_ = 16 * kChunkBytes;  // of cache_
  uint64_t kept_bytes_ = 0;
  std::unique_ptr<ChunkAhead> ahead_;
  bool each_once_ = false;                // bytes that were copied out of a chunk are not needed again
  std::vector<std::byte> stored_;         // an encoded chunk, as it was read
  std::atomic<uint64_t> bytes_read_ = 0;  // loads may run at once
};

}  // namespace cairn
