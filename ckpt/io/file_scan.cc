// Open() decides once whether the file is in the page cache. If it is, windows of it are mapped, or copied,
// one after the other. If not, a ring of slots has one more than there are reads in flight: the caller uses
// one while the others fill. Direct reads are of whole pages, so what is behind the last whole page comes
// through a second, buffered file.

#include "ckpt/io/file_scan.h"

#include <algorithm>

namespace cairn {
namespace {

constexpr uint64_t kScanBytes = 4 << 20;
constexpr int kDepth = 3;

}  // namespace

Result<std::unique_ptr<FileScan>> FileScan::Open(FileSystem& fs, const std::string& path, uint64_t bytes,
                                                 Direct direct, bool may_map) {
  std::unique_ptr<FileScan> scan(new FileScan);
  CAIRN_ASSIGN_OR_RETURN(scan->file_, fs.OpenForRead(path));
  scan->bytes_ = bytes;
  scan->may_map_ = may_map;
  const std::optional<uint64_t> cached = CachedBytes(*scan->file_, 0, bytes);
  scan->cached_ = direct != Direct::kOn && cached && *cached >= bytes / 2;
  if (!cached) direct = Direct::kOff;  // it has no descriptor
  scan->queued_bytes_ = bytes;
  if (!scan->cached_ && direct != Direct::kOff) {
    scan->buffered_ = std::move(scan->file_);
    CAIRN_ASSIGN_OR_RETURN(scan->file_, fs.OpenForRead(path, direct));
    if (scan->file_->direct()) scan->queued_bytes_ = bytes / kPageBytes * kPageBytes;
  }
  scan->slots_.resize(kDepth + 1);
  scan->queue_ = fs.NewQueue({.depth = kDepth});
  return scan;
}

Result<std::span<const std::byte>> FileScan::Next(uint64_t most) {
  if (current_.empty()) CAIRN_RETURN_IF_ERROR(Fetch());
  const auto next = current_.first(std::min<uint64_t>(most, current_.size()));
  current_ = current_.subspan(next.size());
  offset_ += next.size();
  return next;
}

Status FileScan::Fetch() {
  if (cached_) return FetchCached();
  if (offset_ == queued_bytes_) return FetchTail();
  if (used_ > 0 && slots_[first_].ready) {  // the window that has been used up
    slots_[first_].ready = false;
    first_ = (first_ + 1) % slots_.size();
    --used_;
  }
  StartReads();
  Slot& slot = slots_[first_];
  while (!slot.ready) {
    const IoQueue::Completion done = queue_->Wait();
    slots_[done.tag].ready = true;
    slots_[done.tag].status = done.status;
  }
  CAIRN_RETURN_IF_ERROR(slot.status);
  current_ = {slot.memory->data(), slot.end - slot.begin};
  return OkStatus();
}

void FileScan::StartReads() {
  while (started_ < queued_bytes_ && used_ < slots_.size() && queue_->in_flight() < queue_->depth()) {
    const size_t index = (first_ + used_) % slots_.size();
    Slot& slot = slots_[index];
    slot.begin = started_;
    slot.end = std::min(queued_bytes_, started_ + kScanBytes);
    queue_->Read(*file_, slot.begin, {MemoryOf(slot), slot.end - slot.begin}, index);
    started_ = slot.end;
    ++used_;
  }
}

Status FileScan::FetchCached() {
  const uint64_t count = std::min(kScanBytes, bytes_ - offset_);
  mapped_.reset();
  if (may_map_) {
    Result<MappedRange> mapped = MappedRange::Map(*file_, offset_, count);
    if (mapped.ok()) {
      mapped_.emplace(std::move(mapped).value());
      current_ = mapped_->bytes();
      return OkStatus();
    }
    if (mapped.status().kind() != StatusKind::kNotSupported) return mapped.status();
  }
  const std::span<std::byte> bytes(MemoryOf(slots_[0]), count);
  CAIRN_RETURN_IF_ERROR(file_->ReadAt(offset_, bytes));
  current_ = bytes;
  return OkStatus();
}

Status FileScan::FetchTail() {
  const std::span<std::byte> bytes(MemoryOf(slots_[0]), bytes_ - offset_);
  CAIRN_RETURN_IF_ERROR(buffered_->ReadAt(offset_, bytes));
  current_ = bytes;
  return OkStatus();
}

std::byte* FileScan::MemoryOf(Slot& slot) {
  if (!slot.memory) slot.memory = std::make_unique<WriteRing::Buffer>(kScanBytes);
  return slot.memory->data();
}

}  // namespace cairn
