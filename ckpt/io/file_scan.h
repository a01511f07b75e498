// Reads a file once from front to back, as fast as its place allows: what lies in the page cache is looked at
// there (or copied, where it must not change between two looks), the rest comes past it, a few large reads in
// flight.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/io/page_cache.h"
#include "ckpt/io/write_ring.h"

namespace cairn {

class FileScan {
 public:
  // Of the first `bytes` of the file. Errors: those of FileSystem::OpenForRead.
  static Result<std::unique_ptr<FileScan>> Open(FileSystem& fs, const std::string& path, uint64_t bytes,
                                                Direct direct = Direct::kAuto, bool may_map = true);

  // The next bytes: at least one and `most` at most; valid until the next call. Requires offset() < bytes and
  // most > 0. Errors: those of File::ReadAt.
  Result<std::span<const std::byte>> Next(uint64_t most);
  uint64_t offset() const { return offset_; }

 private:
  struct Slot {
    std::unique_ptr<WriteRing::Buffer> memory;
    uint64_t begin = 0;
    uint64_t end = 0;
    bool ready = false;
    Status status;
  };

  FileScan() = default;
  Status Fetch();
  Status FetchCached();
  Status FetchTail();
  void StartReads();
  static std::byte* MemoryOf(Slot& slot);

  std::unique_ptr<File> file_;
  std::unique_ptr<File> buffered_;  // where file_ is read past the cache: for the end of the last page
  uint64_t queued_bytes_ = 0;       // that are read through the queue
  uint64_t bytes_ = 0;
  uint64_t offset_ = 0;   // of what Next() gives next
  uint64_t started_ = 0;  // where the next read begins
  bool cached_ = false;
  bool may_map_ = true;
  std::optional<MappedRange> mapped_;
  std::span<const std::byte> current_;  // what is left of the window at offset_
  std::vector<Slot> slots_;             // a window each, by turns
  size_t first_ = 0;                    // the slot of the window at, or after, offset_
  size_t used_ = 0;                     // slots from there on
  std::unique_ptr<IoQueue> queue_;      // last: it waits for reads into the slots
};

}  // namespace cairn
