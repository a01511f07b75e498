// Bytes from a page boundary on gather in the cursor's buffer and go out as whole pages. A part of a page is
// put into that page in memory. Once enough pages have gathered, the full ones go out, neighbours in one
// write. If too many are left, all go out as they are. One of those that gets more bytes is read again and
// then waits for Finish(), because nobody knows any more how much of it was filled. The file has whole pages
// until Finish() cuts it to its length.

#include "ckpt/io/paged_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cairn {
namespace {

// New ones after which the full pages are written: 16 MiB, in which the columns of most fused matrices meet.
constexpr size_t kGatheredPages = 4 << 10;
constexpr uint64_t kShortBytes = 64 << 10;

}  // namespace

PagedFile::PagedFile(FileSystem& fs, WriteRing& ring, std::unique_ptr<File> file, uint64_t bytes,
                     size_t max_waiting)
    : fs_(fs),
      ring_(ring),
      file_(std::move(file)),
      bytes_(bytes),
      max_waiting_(max_waiting),
      make_room_at_(std::min(max_waiting, kGatheredPages)) {}

Result<std::unique_ptr<PagedFile>> PagedFile::Create(FileSystem& fs, WriteRing& ring, const std::string& path,
                                                     uint64_t bytes, Direct direct, size_t max_waiting) {
  CAIRN_ASSIGN_OR_RETURN(auto file, fs.Create(path, direct));
  CAIRN_RETURN_IF_ERROR(file->Allocate(PageUp(bytes)));
  return std::unique_ptr<PagedFile>(new PagedFile(fs, ring, std::move(file), bytes, max_waiting));
}

Status PagedFile::CheckInside(uint64_t offset, uint64_t bytes) {
  CAIRN_RETURN_IF_ERROR(ring_.error());
  if (bytes <= bytes_ - std::min(offset, bytes_)) return OkStatus();
  return InvalidArgument("{}: byte {} is beyond its end", path(), offset + bytes);
}

Status PagedFile::Append(Cursor& cursor, std::span<const std::byte> bytes) {
  CAIRN_RETURN_IF_ERROR(CheckInside(cursor.next, bytes.size()));
  while (!bytes.empty()) {
    uint64_t count = bytes.size();
    const bool empty = !cursor.buffer || cursor.buffer->size == 0;
    if (empty && cursor.next % kPageBytes != 0) {
      count = std::min(count, kPageBytes - cursor.next % kPageBytes);
      CAIRN_RETURN_IF_ERROR(Patch(cursor.next, bytes.first(count)));
    } else {
      if (!cursor.buffer) cursor.buffer = ring_.Acquire();
      if (empty) cursor.begin = cursor.next;
      WriteRing::Buffer& buffer = *cursor.buffer;
      count = std::min(count, ring_.buffer_bytes() - buffer.size);
      std::memcpy(buffer.data() + buffer.size, bytes.data(), count);
      buffer.size += count;
      if (buffer.size == ring_.buffer_bytes())
        ring_.Submit(file_.get(), cursor.begin, std::move(cursor.buffer));
    }
    cursor.next += count;
    bytes = bytes.subspan(count);
  }
  return OkStatus();
}

// Whole pages go out, the rest of the last one waits.
Status PagedFile::Flush(Cursor& cursor) {
  if (!cursor.buffer || cursor.buffer->size == 0) return OkStatus();
  WriteRing::Buffer& buffer = *cursor.buffer;
  const uint64_t whole = PageDown(buffer.size);
  Status status = Patch(cursor.begin + whole, {buffer.data() + whole, buffer.size - whole});
  buffer.size = whole;
  if (whole > 0) ring_.Submit(file_.get(), cursor.begin, std::move(cursor.buffer));
  return status;
}

// A short one waits in pages, and goes out with its neighbours.
Status PagedFile::Write(uint64_t offset, std::span<const std::byte> bytes) {
  if (bytes.size() > kShortBytes) {
    Cursor cursor{.next = offset, .begin = 0, .buffer = nullptr};
    CAIRN_RETURN_IF_ERROR(Append(cursor, bytes));
    return Flush(cursor);
  }
  CAIRN_RETURN_IF_ERROR(CheckInside(offset, bytes.size()));
  while (!bytes.empty()) {
    const uint64_t count = std::min(bytes.size(), kPageBytes - offset % kPageBytes);
    CAIRN_RETURN_IF_ERROR(Patch(offset, bytes.first(count)));
    offset += count;
    bytes = bytes.subspan(count);
  }
  return OkStatus();
}

Status PagedFile::Patch(uint64_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return OkStatus();
  const uint64_t number = offset / kPageBytes;
  const auto [at, fresh] = pages_.try_emplace(number);
  Page& page = at->second;
  if (fresh && evicted_.erase(number) > 0) CAIRN_RETURN_IF_ERROR(ReadAgain(number, page));
  std::memcpy(page.bytes.data() + offset % kPageBytes, bytes.data(), bytes.size());
  page.filled += bytes.size();
  return pages_.size() > make_room_at_ ? MakeRoom() : OkStatus();
}

Status PagedFile::MakeRoom() {
  const auto is_full = [this](const auto& entry) {
    return entry.second.filled >= std::min(kPageBytes, bytes_ - entry.first * kPageBytes);
  };
  for (auto first = pages_.begin(); first != pages_.end();) {
    const auto last = std::find_if_not(first, pages_.end(), is_full);
    WritePages(first, last);
    pages_.erase(first, last);
    first = std::find_if(last, pages_.end(), is_full);
  }
  if (pages_.size() > max_waiting_ / 4 * 3) CAIRN_RETURN_IF_ERROR(Evict());
  make_room_at_ = std::min(max_waiting_, pages_.size() + kGatheredPages);
  return ring_.error();
}

// How much of it was filled is not known any more: it waits for Finish().
Status PagedFile::ReadAgain(uint64_t number, Page& page) {
  CAIRN_RETURN_IF_ERROR(ring_.Drain());
  if (!reader_) {
    CAIRN_ASSIGN_OR_RETURN(reader_, fs_.OpenForRead(path()));
  }
  return reader_->ReadAt(number * kPageBytes, page.bytes);
}

// Neighbours in one write.
void PagedFile::WritePages(std::map<uint64_t, Page>::iterator first,
                           std::map<uint64_t, Page>::iterator last) {
  std::unique_ptr<WriteRing::Buffer> buffer;
  uint64_t begin = 0;
  for (; first != last; ++first) {
    const uint64_t offset = first->first * kPageBytes;
    if (buffer && (offset != begin + buffer->size || buffer->size == ring_.buffer_bytes()))
      ring_.Submit(file_.get(), begin, std::exchange(buffer, nullptr));
    if (!buffer) {
      buffer = ring_.Acquire();
      begin = offset;
    }
    std::memcpy(buffer->data() + buffer->size, first->second.bytes.data(), kPageBytes);
    buffer->size += kPageBytes;
  }
  if (buffer) ring_.Submit(file_.get(), begin, std::move(buffer));
}

Status PagedFile::Evict() {
  for (const auto& [number, page] : pages_) evicted_.insert(number);
  WritePages(pages_.begin(), pages_.end());
  pages_.clear();
  return ring_.error();
}

Status PagedFile::Finish() {
  WritePages(pages_.begin(), pages_.end());
  pages_.clear();
  CAIRN_RETURN_IF_ERROR(ring_.Drain());
  CAIRN_RETURN_IF_ERROR(file_->Allocate(bytes_));
  CAIRN_RETURN_IF_ERROR(file_->Sync());
  return file_->Close();
}

}  // namespace cairn
