// Large aligned writes in flight, from a small ring of buffers that are touched once and used again.
//
// A buffer is acquired, filled, and submitted with its place. One memory copy into such a buffer is far
// cheaper here than a fresh page, in user memory as in the page cache. The first failure wins and stays set:
// several files share a ring, and each must learn that a write of its own failed. Safe from several threads.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/io/page_buffer.h"

namespace cairn {

struct WriteRingOptions {
  uint64_t buffer_bytes = 4 << 20;  // a multiple of kPageBytes; one write
  int in_flight = 4;
};

class WriteRing {
 public:
  using Buffer = PageBuffer;  // of one write

  // For files of `fs`.
  explicit WriteRing(FileSystem& fs, const WriteRingOptions& options = {});
  ~WriteRing();  // waits for the writes in flight
  WriteRing(const WriteRing&) = delete;
  WriteRing& operator=(const WriteRing&) = delete;

  uint64_t buffer_bytes() const { return options_.buffer_bytes; }

  // An empty buffer. Waits while too many writes are in flight; buffers that callers hold do not count, so
  // that any number of pieces can be open at once.
  std::unique_ptr<Buffer> Acquire();
  // Writes the buffer's `size` bytes at `offset` of `file`, which must live until that is awaited.
  void Submit(File* file, uint64_t offset, std::unique_ptr<Buffer> buffer);
  // The first error so far, without waiting.
  Status error();
  // A point in the order of submits, and waiting until everything before it is written. The first error so
  // far.
  uint64_t Mark();
  Status Await(uint64_t mark);
  // Waits for all writes that were submitted before the call. The first error so far.
  Status Drain() { return Await(Mark()); }

 private:
  // Waits until a write ended, with `lock` of the mutex let go for that long: others acquire and submit
  // meanwhile.
  void Reap(std::unique_lock<std::mutex>& lock);

  const WriteRingOptions options_;
  std::mutex mutex_;  // all below
  std::condition_variable reaped_;
  bool reaping_ = false;  // a thread waits for the queue; others wait for it
  uint64_t reaps_ = 0;
  std::map<uint64_t, std::unique_ptr<Buffer>> writing_;  // by tag
  std::vector<std::unique_ptr<Buffer>> free_;
  uint64_t next_tag_ = 0;
  Status status_;
  std::unique_ptr<IoQueue> queue_;  // last: it is drained before the buffers go
};

// Bytes of a file in order, through a ring. Used by one thread at a time.
class SequentialWriter {
 public:
  // `offset` is a multiple of kPageBytes. The file must live until the ring is drained.
  SequentialWriter(WriteRing& ring, File* file, uint64_t offset)
      : ring_(ring), file_(file), offset_(offset) {}

  void Append(std::span<const std::byte> bytes);
  void Append(std::string_view bytes) { Append(std::as_bytes(std::span(bytes))); }
  // Leaves a hole. Requires that nothing waits for a Flush().
  void Skip(uint64_t bytes) { offset_ += bytes; }
  // Submits what is left; FlushPage() pads it with zeros to the end of its page.
  void Flush();
  void FlushPage();
  uint64_t offset() const { return offset_; }  // of the next byte

 private:
  WriteRing& ring_;
  File* file_;
  uint64_t offset_;
  std::unique_ptr<WriteRing::Buffer> buffer_;
};

// Submits `bytes` at `offset`, padded to whole pages.
inline void WriteExtent(WriteRing& ring, File* file, uint64_t offset, std::string_view bytes) {
  SequentialWriter out(ring, file, offset);
  out.Append(bytes);
  out.FlushPage();
}

}  // namespace cairn
