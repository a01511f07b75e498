// Reads the chunks that a stream of boxes is going to need, before it asks for them.
//
// Chunks are read in the order of their first use, past the page cache unless most of them is in it, several
// reads in flight. Chunks that are neighbours in a file and soon needed are read together, so that small
// tensors and interleaved shards cost no small reads. Belongs to one thread.
#pragma once

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "ckpt/io/open_files.h"
#include "ckpt/io/write_ring.h"
#include "ckpt/model/source.h"
#include "ckpt/step/chunk_decoder.h"

namespace cairn {

class ChunkAhead {
 public:
  using Buffer = std::unique_ptr<WriteRing::Buffer>;
  struct Stored {  // a chunk as it lies in its file, not verified
    Buffer memory;
    std::span<std::byte> bytes;  // in `memory`
  };

  // All must outlive it. Holds at most `max_bytes`, one read at least.
  ChunkAhead(const StepCatalog& catalog, OpenFiles& files, BoxSequence next, uint64_t max_bytes);

  // A chunk of the boxes to come, once; nothing where it is none of them or was taken already.
  // Errors: those of the disk.
  Result<std::optional<Stored>> Take(size_t piece, uint64_t chunk);
  // Memory that a Take() gave, to be used again.
  void Recycle(Buffer buffer);

 private:
  using ChunkId = std::pair<size_t, uint64_t>;  // piece, chunk
  struct Wanted {
    ChunkId id;
    uint32_t file;
    uint64_t begin, end;  // in the file
  };
  struct Extent {
    std::shared_ptr<File> file;
    Buffer memory;
    uint64_t begin = 0;  // in the file, of `memory`
    size_t left = 0;     // chunks that nobody took yet
    bool done = false;
    Status status;
  };
  struct Place {
    std::list<Extent>::iterator extent;
    uint64_t offset, bytes;  // in the extent's memory
  };

  void PlanMore();
  void PlanBox(const TensorBox& next);
  void StartReads();
  void StartRead();
  Result<std::shared_ptr<File>> FileOf(uint32_t file, uint64_t begin, uint64_t bytes);
  Buffer NewBuffer(uint64_t bytes);
  Stored Deliver(const Place& place);

  const StepCatalog& catalog_;
  OpenFiles& files_;
  BoxSequence next_;
  const size_t max_extents_;
  std::deque<Wanted> wanted_;             // not yet being read, in order of first use
  uint32_t tensor_ = UINT32_MAX;          // the last one planned
  std::vector<uint64_t> planned_chunks_;  // of each of its pieces, from the first
  std::list<Extent> extents_;
  std::map<ChunkId, Place> places_;
  std::vector<Buffer> free_;
  std::unique_ptr<IoQueue> queue_;  // last: it waits for reads into the extents
};

}  // namespace cairn
