// Bytes from a page boundary on gather in the cursor's buffer and go out as whole pages. A part of a page is
// put into that page in memory. Once enough pages have gathered, the full ones go out, neighbours in one
// write. If too many are left, all go out as they are. One of those that gets more bytes is read again and
// then waits for Finish(), because its filled part is unknown. The file has whole pages until Finish() cuts
// it to its length.

#include "ckpt/io/paged_file.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

namespace cairn {
namespace {

// New ones after which the full pages are written: 16 MiB, in which the columns of most fused matrices meet.
constexpr size_t kGatheredPages = 4 << 10;
constexpr uint64_t kShortBytes = 64 << 10;

}  // namespace

WaitingPages::WaitingPages(size_t max) : max_(max), make_room_at_(std::min(max, kGatheredPages)) {}

Status WaitingPages::Add() { return ++count_ > make_room_at_ ? MakeRoom() : OkStatus(); }

Status WaitingPages::MakeRoom() {
  for (PagedFile* file : files_) file->WriteFullPages();
  if (count_ > max_ / 4 * 3)
    for (PagedFile* file : files_) file->Evict();
  make_room_at_ = std::min(max_, count_ + kGatheredPages);
  return files_.front()->ring_.error();
}

PagedFile::PagedFile(FileSystem& fs, WriteRing& ring, WaitingPages& waiting, std::unique_ptr<File> file,
                     uint64_t bytes)
    : fs_(fs), ring_(ring), waiting_(waiting), file_(std::move(file)), bytes_(bytes) {
  waiting_.files_.push_back(this);
}

PagedFile::~PagedFile() {
  waiting_.count_ -= pages_.size();
  std::erase(waiting_.files_, this);
  (void)ring_.Await(ring_.Mark());  // writes in flight are into it
}

Result<std::unique_ptr<PagedFile>> PagedFile::Create(FileSystem& fs, WriteRing& ring, WaitingPages& waiting,
                                                     const std::string& path, uint64_t bytes, Direct direct) {
  CAIRN_ASSIGN_OR_RETURN(auto file, fs.Create(path, direct));
  CAIRN_RETURN_IF_ERROR(file->Allocate(PageUp(bytes)));
  return std::unique_ptr<PagedFile>(new PagedFile(fs, ring, waiting, std::move(file), bytes));
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
    if (empty && waiting_.max_ == 0 && count <= kShortBytes) {
      CAIRN_RETURN_IF_ERROR(file_->WriteAt(cursor.next, bytes));
    } else if (empty && cursor.next % kPageBytes != 0) {
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

// Writes whole pages; the rest of the last one waits.
Status PagedFile::Flush(Cursor& cursor) {
  if (!cursor.buffer || cursor.buffer->size == 0) return OkStatus();
  WriteRing::Buffer& buffer = *cursor.buffer;
  const uint64_t whole = PageDown(buffer.size);
  Status status = Patch(cursor.begin + whole, {buffer.data() + whole, buffer.size - whole});
  buffer.size = whole;
  if (whole > 0) ring_.Submit(file_.get(), cursor.begin, std::move(cursor.buffer));
  return status;
}

// A short one waits in pages, and is written with its neighbours.
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
  if (waiting_.max_ == 0) return file_->WriteAt(offset, bytes);
  const uint64_t number = offset / kPageBytes;
  bool fresh = false;
  if (recent_ == pages_.end() || recent_->first != number)
    std::tie(recent_, fresh) = pages_.try_emplace(number);
  Page& page = recent_->second;
  if (fresh && evicted_.erase(number) > 0) CAIRN_RETURN_IF_ERROR(ReadAgain(number, page));
  std::memcpy(page.bytes.data() + offset % kPageBytes, bytes.data(), bytes.size());
  page.filled += bytes.size();
  return fresh ? waiting_.Add() : OkStatus();
}

void PagedFile::WriteFullPages() {
  const auto is_full = [this](const auto& entry) {
    return entry.second.filled >= std::min(kPageBytes, bytes_ - entry.first * kPageBytes);
  };
  for (auto first = pages_.begin(); first != pages_.end();) {
    const auto last = std::find_if_not(first, pages_.end(), is_full);
    WritePages(first, last);
    first = std::find_if(last, pages_.end(), is_full);
  }
}

// Its filled part is unknown from now on, so it waits for Finish().
Status PagedFile::ReadAgain(uint64_t number, Page& page) {
  CAIRN_RETURN_IF_ERROR(ring_.Drain());
  if (!reader_) {
    CAIRN_ASSIGN_OR_RETURN(reader_, fs_.OpenForRead(path()));
  }
  return reader_->ReadAt(number * kPageBytes, page.bytes);
}

void PagedFile::WritePages(Pages::iterator first, Pages::iterator last) {
  std::unique_ptr<WriteRing::Buffer> buffer;
  uint64_t begin = 0;
  recent_ = pages_.end();
  for (; first != last; first = pages_.erase(first), --waiting_.count_) {
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

void PagedFile::Evict() {
  for (const auto& [number, page] : pages_) evicted_.insert(number);
  WritePages(pages_.begin(), pages_.end());
}

Status PagedFile::Finish() {
  WritePages(pages_.begin(), pages_.end());
  CAIRN_RETURN_IF_ERROR(ring_.Drain());
  CAIRN_RETURN_IF_ERROR(file_->Allocate(bytes_));
  CAIRN_RETURN_IF_ERROR(file_->Sync());
  return file_->Close();
}

}  // namespace cairn
