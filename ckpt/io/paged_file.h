// A file that is written in stretches of any alignment and order, each byte at most once, in large aligned
// writes past the page cache. Bytes that are never written are zero.
//
// Stretches come through cursors: bytes that follow each other are gathered in one write buffer. Where
// stretches meet inside a page, the page waits in memory; when too many wait, the whole ones are written. If
// too few are whole, all are written as they are, and read again when the rest of them comes.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <set>
#include <span>

#include "ckpt/io/write_ring.h"

namespace cairn {

class PagedFile {
 public:
  // Creates `path`, `bytes` long. `ring` must outlive it. At most `max_waiting` pages wait.
  static Result<std::unique_ptr<PagedFile>> Create(FileSystem& fs, WriteRing& ring, const std::string& path,
                                                   uint64_t bytes, Direct direct, size_t max_waiting = 512);

  ~PagedFile() { (void)ring_.Await(ring_.Mark()); }  // writes in flight are into it
  PagedFile(const PagedFile&) = delete;
  PagedFile& operator=(const PagedFile&) = delete;

  // Where a run of stretches continues.
  struct Cursor {
    uint64_t next = 0;   // in the file
    uint64_t begin = 0;  // of the buffer, a multiple of kPageBytes
    std::unique_ptr<WriteRing::Buffer> buffer;
  };
  // Bytes at cursor.next, which moves on. Large buffers go out when they are full.
  Status Append(Cursor& cursor, std::span<const std::byte> bytes);
  // Writes the bytes that the cursor gathered; it may then start elsewhere.
  Status Flush(Cursor& cursor);
  // A stretch by itself.
  Status Write(uint64_t offset, std::span<const std::byte> bytes);

  // After the last stretch: everything durable, the file closed.
  Status Finish();
  const std::string& path() const { return file_->path(); }

 private:
  struct Page {
    std::array<std::byte, kPageBytes> bytes{};
    uint64_t filled = 0;
  };

  PagedFile(FileSystem& fs, WriteRing& ring, std::unique_ptr<File> file, uint64_t bytes, size_t max_waiting);
  // Errors: InvalidArgument; the ring's.
  Status CheckInside(uint64_t offset, uint64_t bytes);
  Status Patch(uint64_t offset, std::span<const std::byte> bytes);
  Status ReadAgain(uint64_t page, Page& into);
  void WritePages(std::map<uint64_t, Page>::iterator first, std::map<uint64_t, Page>::iterator last);
  Status MakeRoom();
  Status Evict();

  FileSystem& fs_;
  WriteRing& ring_;
  std::unique_ptr<File> file_;
  std::unique_ptr<File> reader_;  // opened when first needed
  const uint64_t bytes_;
  const size_t max_waiting_;
  size_t make_room_at_;             // pages
  std::map<uint64_t, Page> pages_;  // that wait, by their number
  std::set<uint64_t> evicted_;      // incomplete ones that lie in the file
};

}  // namespace cairn
