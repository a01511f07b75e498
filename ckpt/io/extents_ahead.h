// Reads stretches of files before they are asked for.
//
// The caller says what it will need, in order of first use. Stretches that lie near each other in a file are
// read together in one extent, several extents in flight, within a limit of memory. Belongs to one thread.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/io/extent_reader.h"

namespace cairn {

// Files by number.
struct NumberedFiles {
  OpenFiles& open;
  std::span<const std::string> names;    // for `open`
  std::span<const uint64_t> file_bytes;  // that each has at least
};

class ExtentsAhead {
 public:
  using Id = std::pair<uint64_t, uint64_t>;  // the caller's own
  struct Wanted {
    Id id;
    uint32_t file = 0;
    uint64_t begin = 0, end = 0;  // bytes of the file; at most kExtentBytes are read well
  };
  // The next extents to read: empty if not known yet, nullopt at the end.
  using Plan = std::function<std::optional<std::vector<Wanted>>()>;
  struct Taken {
    std::span<std::byte> bytes;
    // The memory of `bytes` if nothing else in it is needed any more; without it they stay until the next
    // Take().
    std::unique_ptr<PageBuffer> memory;
  };

  // What `files` refers to must outlive it. Holds at most `max_bytes`, one extent at least. Neighbours are
  // looked for among the next `horizon_bytes` that are wanted.
  ExtentsAhead(const NumberedFiles& files, Plan plan, uint64_t max_bytes, uint64_t horizon_bytes);

  // Plans more and starts reads, as far as memory allows.
  void StartReads();
  // Takes a stretch of the plan, once; nullopt if the plan has no such stretch, or it was already taken.
  // Errors: those of ExtentReader::Wait.
  Result<std::optional<Taken>> Take(Id id);
  std::unique_ptr<PageBuffer> NewBuffer(uint64_t bytes) { return reader_.NewBuffer(bytes); }
  // Returns memory of a Take() or NewBuffer() for reuse.
  void Recycle(std::unique_ptr<PageBuffer> memory) { reader_.Recycle(std::move(memory)); }

 private:
  struct Extent {
    ExtentReader::Finished read;
    uint64_t begin = 0, end = 0;  // bytes of the file
    size_t left = 0;              // stretches not taken yet
    bool done = false;
  };
  struct Place {
    std::list<Extent>::iterator extent;
    uint64_t offset, bytes;  // in the extent
  };

  void PlanMore();
  bool HasRoom() const;
  void StartRead();
  void Finish();

  const NumberedFiles files_;
  Plan plan_;
  const uint64_t max_bytes_;
  const uint64_t horizon_bytes_;
  std::deque<Wanted> wanted_;  // not yet being read, in order of first use
  uint64_t wanted_bytes_ = 0;
  std::list<Extent> extents_;
  uint64_t held_bytes_ = 0;  // of all extents
  std::map<Id, Place> places_;
  ExtentReader reader_;
};

}  // namespace cairn
