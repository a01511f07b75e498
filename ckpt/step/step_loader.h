// Fills many boxes of a step's tensors at once: by several threads; each chunk is read once and verified
// before use.
//
// Neighbouring chunks are read together, several reads in flight, out of the page cache or past it
// (ckpt/io/extent_reader.h), so small tensors cost no small reads.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/io/open_files.h"
#include "ckpt/model/copy_program.h"
#include "ckpt/model/manifest.h"
#include "ckpt/step/chunk_decoder.h"

namespace cairn {

// `out` becomes `box` of tensor `tensor` (index into the catalog), in row-major order.
struct ReadRequest {
  uint32_t tensor = 0;
  Box box;
  std::span<std::byte> out;  // exactly the bytes of the box; no two requests overlap
};

struct LoadOptions {
  int threads = 2;      // the caller's among them; one core digests and copies faster than most disks read
  bool spread = false;  // over the NUMA nodes that this process may use (ckpt/base/cores.h)
  int depth = 4;        // reads in flight, of all threads; each takes kExtentBytes of memory
  // kAuto: reads past the page cache what is not in it, if the file system allows. Several processes of a
  // node that load the same bytes share the page cache with kOff.
  Direct direct = Direct::kAuto;
  // True: files in the page cache are mapped, so nobody may cut them meanwhile (page_cache.h). False: they
  // are read, a large chunk that is one run of an `out` straight into it. Either way bytes from the disk go
  // through buffers of huge pages: `out` is often in pages of 4 KiB, to which some disks transfer at half
  // their rate.
  bool map = true;
};

class StepLoader {
 public:
  // All must outlive the loader. `file_bytes`: of the catalog's files.
  StepLoader(const Manifest& manifest, const StepCatalog& catalog, OpenFiles& files,
             std::span<const uint64_t> file_bytes, const LoadOptions& options);

  // Errors: InvalidArgument (a box outside of its tensor, an `out` of the wrong size), Corrupt naming file,
  // offset and tensor, those of the disk. After an error the contents of all `out` are unspecified.
  Status Load(std::span<const ReadRequest> requests);
  // Errors: InvalidArgument (no such tensor, a box outside of it, an `out` of the wrong size).
  Status CheckRequest(const ReadRequest& request) const;

  // Stored bytes of the chunks read so far; padding between them does not count.
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct ChunkRef {
    size_t copy;  // the first of its piece
    uint64_t chunk;
  };
  struct Extent {  // neighbouring chunks of one file, read together
    uint32_t file = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
    std::vector<ChunkRef> chunks;
  };
  class Worker;

  Status Plan();
  // The copies out of the piece of `first`: those from `first` on that name the same piece.
  std::span<const Copy> CopiesOfPiece(size_t first) const;
  std::optional<ChunkRef> PeekChunk();
  std::optional<Extent> NextExtent();
  // The place of the whole chunk in one request's `out`, if it is one run in it; else null.
  std::byte* WholeTarget(const Piece& piece, const ChunkPlace& place, std::span<const Copy> copies) const;
  Piece PieceOf(const ChunkRef& ref) const { return catalog_.pieces[program_.copies[ref.copy].from]; }
  ChunkPlace PlaceOf(const Piece& piece, uint64_t chunk) const;
  // The error of a read, with the tensor.
  Status Named(const Status& status, const ChunkRef& ref) const;
  // Copies decoded values of a chunk to the requests that want them. The arguments must outlive it.
  ChunkDecoder::Sink ScatterTo(const Piece& piece, const ChunkPlace& place,
                               std::span<const Copy> copies) const;
  // Copies the values of a chunk to their requests. The extent's stored bytes begin at `extent_begin` of its
  // file.
  Status DeliverChunk(const ChunkRef& ref, uint64_t extent_begin, std::span<const std::byte> extent_bytes);
  // Reads a chunk that is not encoded from the page cache, slice by slice, and copies its values, through
  // `memory` unless the chunk is one run of an `out`.
  Status DeliverCached(const ChunkRef& ref, File& file, std::span<std::byte> memory);

  const Manifest& manifest_;
  const StepCatalog& catalog_;
  OpenFiles& files_;
  const LoadOptions options_;
  const ChunkDecoder decoder_;
  const std::span<const uint64_t> file_bytes_;
  std::span<const ReadRequest> requests_;
  CopyProgram program_;  // pieces to requests, in order of place

  std::mutex mutex_;
  ChunkRef next_{0, 0};
  Status status_;  // the first failure; it stops all
  std::atomic<uint64_t> bytes_read_ = 0;
};

}  // namespace cairn
