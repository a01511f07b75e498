// Reads the chunks that a stream of boxes is going to need, before it asks for them.
//
// Chunks are read in the order of their first use. Neighbours in a file are read together, so small tensors
// and interleaved shards cost no small reads (ckpt/io/extents_ahead.h). Belongs to one thread.
#pragma once

#include <memory>
#include <vector>

#include "ckpt/io/extents_ahead.h"
#include "ckpt/model/source.h"
#include "ckpt/step/chunk_decoder.h"

namespace cairn {

class ChunkAhead {
 public:
  using Buffer = std::unique_ptr<PageBuffer>;
  struct Stored {  // a chunk as it lies in its file, not verified
    Buffer memory;
    std::span<std::byte> bytes;  // in `memory`
  };

  // All must outlive it. Holds at most `max_bytes`, one read at least. `file_bytes`: of the catalog's files.
  ChunkAhead(const StepCatalog& catalog, OpenFiles& files, std::span<const uint64_t> file_bytes,
             BoxSequence next, uint64_t max_bytes);

  // Takes a chunk of the boxes to come, once; nullopt if it is not one of them or was already taken.
  // Errors: those of the disk.
  Result<std::optional<Stored>> Take(size_t piece, uint64_t chunk);
  // Returns memory of a Take() for reuse.
  void Recycle(Buffer buffer) { ahead_.Recycle(std::move(buffer)); }

 private:
  std::vector<ExtentsAhead::Wanted> ChunksOf(const TensorBox& next);

  const StepCatalog& catalog_;
  uint32_t tensor_ = UINT32_MAX;          // the last one planned
  std::vector<uint64_t> planned_chunks_;  // of each of its pieces, from the first
  ExtentsAhead ahead_;
};

}  // namespace cairn
