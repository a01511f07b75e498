// Reads the boxes that a stream is going to need, before it asks for them, from files that hold them as runs:
// stretches of a file whose elements have places in the box.
//
// Runs that lie near each other, of one box or of several, are read together, past the page cache, several
// reads in flight (ckpt/io/extents_ahead.h). Belongs to one thread.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "ckpt/io/extents_ahead.h"
#include "ckpt/model/source.h"

namespace cairn {

struct FileRun {
  uint32_t file;    // by number
  uint64_t offset;  // bytes
  uint64_t bytes;
  uint64_t target;  // element of the box
  uint64_t stride;  // elements of the box from one to the next; 1: contiguous
  uint64_t step;    // and of the stretch; 1: all of it
};

// Puts the elements of `run`, whose bytes begin at `from`, into `box_bytes`.
void CopyRun(const FileRun& run, const std::byte* from, uint64_t element_bytes,
             std::span<std::byte> box_bytes);

class RunsAhead {
 public:
  struct BoxRuns {
    std::vector<FileRun> runs;  // by file and offset
    uint64_t element_bytes = 0;
  };

  using SeeBytes = std::function<void(uint32_t file, uint64_t offset, std::span<const std::byte> bytes)>;

  // `see` is given the bytes read from the files, stretch by stretch. `runs_of`, `see` and what `files`
  // refers to must outlive it. Holds at most `max_bytes`, one read at least.
  RunsAhead(const NumberedFiles& files, BoxSequence next, std::function<BoxRuns(const TensorBox&)> runs_of,
            SeeBytes see, uint64_t max_bytes);

  // Fills `out` with the box and returns how many bytes were read from the files. Returns nothing and leaves
  // `out` unchanged if the box is not the next one of the sequence, or if plain reads are better: it is in
  // the page cache, or its runs are scattered. Errors: those of the disk, which name the file.
  Result<std::optional<uint64_t>> Read(const TensorBox& box, std::span<std::byte> out);

 private:
  struct Cluster {  // runs that lie near each other
    size_t first, last;
    ExtentsAhead::Wanted wanted;
  };
  struct Announced {
    TensorBox box;
    BoxRuns stored;
    std::vector<Cluster> clusters;  // empty: it is not read ahead
  };

  std::optional<std::vector<ExtentsAhead::Wanted>> PlanNext();
  void Cut(BoxRuns& stored) const;
  std::vector<Cluster> ClustersOf(const BoxRuns& stored);
  bool InPageCache(const std::vector<Cluster>& clusters) const;

  const NumberedFiles files_;
  BoxSequence next_;
  const std::function<BoxRuns(const TensorBox&)> runs_of_;
  const SeeBytes see_;
  std::deque<Announced> announced_;  // and not read yet, in this order
  uint64_t clusters_ = 0;            // of all boxes so far: the next one's id
  ExtentsAhead ahead_;
};

}  // namespace cairn
