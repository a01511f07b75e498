// Reads stretches of files, several at a time. What is mostly in the page cache is mapped or copied from it;
// anything else is read past it, in whole pages (O_DIRECT) if the file system takes that.
//
// For callers that read large parts of large files: the caller starts extents until the reader is full, waits
// for one, starts the next, and uses the bytes of the finished one meanwhile. Belongs to one thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/base/digest.h"
#include "ckpt/io/open_files.h"
#include "ckpt/io/page_buffer.h"
#include "ckpt/io/page_cache.h"

namespace cairn {

inline constexpr uint64_t kExtentBytes = kChunkBytes;  // of one large read

// Whether a wanted range of a file is read together with an extent before it in the same file: a small gap
// costs less than another read.
bool JoinsExtent(uint64_t begin, uint64_t end, uint64_t next_begin, uint64_t next_end);

struct ExtentReaderOptions {
  int depth = 4;  // reads in flight; each takes its size in memory
  // kOff: always through the page cache; kOn: always past it, or an error.
  Direct direct = Direct::kAuto;
  bool look_in_cache = true;  // false: bytes that are in the page cache are read past it, too
  // False: bytes are never mapped, but lie in memory of their own, which does not change with the file.
  bool map = true;
  // True: an extent in the page cache is not read. The caller reads it from Finished::cached, in slices that
  // stay in the processor's cache.
  bool leave_cached = false;
};

class ExtentReader {
 public:
  struct Extent {
    std::string file;             // of the OpenFiles
    uint64_t begin = 0, end = 0;  // bytes of the file
    uint64_t file_bytes = 0;      // the file has at least this many: its last page may not be whole
    uint64_t tag = 0;             // the caller's own
  };
  struct Finished {
    uint64_t tag = 0;
    Status status;                     // if it is not OK, `bytes` is empty
    std::span<const std::byte> bytes;  // of the extent, in one of the next two
    std::unique_ptr<PageBuffer> memory;
    std::optional<MappedRange> mapped;
    std::shared_ptr<File> cached;  // of an extent that was left in the page cache; `bytes` is empty
  };

  // `files` must outlive the reader.
  ExtentReader(OpenFiles& files, const ExtentReaderOptions& options)
      : files_(files), options_(options), reads_(options.depth) {}

  // Begins with an extent; errors come with Wait(). Requires !full().
  void Start(Extent extent);
  // The next extent to finish, in any order. Requires waiting() > 0. Errors: those of
  // FileSystem::OpenForRead and File::ReadAt, which name the file.
  Finished Wait();
  // Memory for `bytes`: recycled memory of at most twice the size if there is some. New pages cost as much
  // as a copy into them.
  std::unique_ptr<PageBuffer> NewBuffer(uint64_t bytes);
  // The memory that NewBuffer() takes for this many bytes.
  static uint64_t BufferBytes(uint64_t bytes);
  // Memory of a finished extent or of NewBuffer(), to be used again. Null is fine.
  void Recycle(std::unique_ptr<PageBuffer> memory);

  // Extents that were started and did not finish.
  size_t waiting() const { return in_flight() + (at_hand_ ? 1 : 0); }
  // Wait() will return at once: the extent is in the page cache, or its file could not be opened.
  bool at_hand() const { return at_hand_.has_value(); }
  bool full() const { return at_hand() || in_flight() == reads_.size(); }

 private:
  struct AtHand {
    Extent extent;
    std::shared_ptr<File> file;
    Status status;
  };
  struct Read {
    std::shared_ptr<File> file;  // null: no read in this slot
    Finished result;
  };

  size_t in_flight() const { return queue_ ? queue_->in_flight() : 0; }
  Result<bool> IsAtHand(const Extent& extent, std::shared_ptr<File>& file);
  void StartRead(Extent extent, std::shared_ptr<File> file);
  Finished FromCache(const AtHand& at_hand);

  OpenFiles& files_;
  const ExtentReaderOptions options_;
  std::optional<AtHand> at_hand_;
  std::vector<Read> reads_;
  std::vector<std::unique_ptr<PageBuffer>> free_;  // oldest first
  std::unique_ptr<IoQueue> queue_;  // made for the first read; last: it waits for those in flight
};

}  // namespace cairn
