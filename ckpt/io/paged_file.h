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
#include <vector>

#include "ckpt/io/write_ring.h"

namespace cairn {

class PagedFile;

// The waiting pages of several files: at most `max`. With 0 short stretches are written as they come, which
// no direct file takes.
class WaitingPages {
 public:
  explicit WaitingPages(size_t max);

 private:
  friend PagedFile;
  // Counts a page that is new.
  Status Add();
  Status MakeRoom();

  const size_t max_;
  size_t make_room_at_;
  size_t count_ = 0;
  std::vector<PagedFile*> files_;
};

class PagedFile {
 public:
  // Creates `path`, `bytes` long. `ring` and `waiting` must outlive it.
  static Result<std::unique_ptr<PagedFile>> Create(FileSystem& fs, WriteRing& ring, WaitingPages& waiting,
                                                   const std::string& path, uint64_t bytes, Direct direct);

  ~PagedFile();
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

  friend WaitingPages;
  using Pages = std::map<uint64_t, Page>;  // by their number

  PagedFile(FileSystem& fs, WriteRing& ring, WaitingPages& waiting, std::unique_ptr<File> file,
            uint64_t bytes);
  // Errors: InvalidArgument; the ring's.
  Status CheckInside(uint64_t offset, uint64_t bytes);
  Status Patch(uint64_t offset, std::span<const std::byte> bytes);
  Status ReadAgain(uint64_t page, Page& into);
  // Neighbours in one write.
  void WritePages(Pages::iterator first, Pages::iterator last);
  void WriteFullPages();
  void Evict();

  FileSystem& fs_;
  WriteRing& ring_;
  WaitingPages& waiting_;
  std::unique_ptr<File> file_;
  std::unique_ptr<File> reader_;  // opened when first needed
  const uint64_t bytes_;
  Pages pages_;                            // that wait
  Pages::iterator recent_ = pages_.end();  // the last one that got bytes
  std::set<uint64_t> evicted_;             // incomplete ones that lie in the file
};

}  // namespace cairn
