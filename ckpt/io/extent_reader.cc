// Start() asks the kernel how much of an extent is in the page cache. Half of it or more: the extent is at
// hand, and the next Wait() maps or copies it, so that nothing is mapped for long and a copy is still in the
// processor's cache when it is used. Less: a read of whole pages past the page cache is queued at once. The
// last page of a file that does not end with a page cannot be read so, and a file without a descriptor
// belongs to a simulated file system: both are read by the file system's own ReadAt.

#include "ckpt/io/extent_reader.h"

#include <algorithm>
#include <bit>

namespace cairn {
namespace {

constexpr uint64_t kMaxGapBytes = 64 << 10;
constexpr uint64_t kMinMapBytes = 256 << 10;  // below it a mapping costs more than a copy
constexpr uint64_t kMinKeptBytes = 64 << 10;  // below it malloc keeps memory

}  // namespace

bool JoinsExtent(uint64_t begin, uint64_t end, uint64_t next_begin, uint64_t next_end) {
  return next_begin >= end && next_begin - end <= kMaxGapBytes &&
         PageUp(next_end) - PageDown(begin) <= kExtentBytes;
}

void ExtentReader::Start(Extent extent) {
  std::shared_ptr<File> file;
  const Result<bool> at_hand = IsAtHand(extent, file);
  if (at_hand.ok() && !*at_hand) return StartRead(std::move(extent), std::move(file));
  at_hand_ = AtHand{std::move(extent), std::move(file), at_hand.status()};
}

// Opens the file in the mode in which it will be read.
Result<bool> ExtentReader::IsAtHand(const Extent& extent, std::shared_ptr<File>& file) {
  Direct direct = options_.direct;
  if (options_.look_in_cache && direct != Direct::kOn) {
    const uint64_t bytes = extent.end - extent.begin;
    CAIRN_ASSIGN_OR_RETURN(file, files_.Get(extent.file, Direct::kOff));
    const std::optional<uint64_t> cached = CachedBytes(*file, extent.begin, bytes);
    if (cached && *cached >= bytes / 2) return true;
    if (!cached) direct = Direct::kOff;
  }
  const bool whole_pages = extent.end % kPageBytes == 0 || PageUp(extent.end) <= extent.file_bytes;
  CAIRN_ASSIGN_OR_RETURN(file, files_.Get(extent.file, whole_pages ? direct : Direct::kOff));
  return false;
}

void ExtentReader::StartRead(Extent extent, std::shared_ptr<File> file) {
  const bool whole_pages = file->direct();
  const uint64_t begin = whole_pages ? PageDown(extent.begin) : extent.begin;
  const uint64_t bytes = (whole_pages ? PageUp(extent.end) : extent.end) - begin;
  const auto slot = std::ranges::find(reads_, nullptr, &Read::file);
  slot->file = std::move(file);
  slot->result = {.tag = extent.tag, .memory = NewBuffer(bytes)};
  const std::span<std::byte> into(slot->result.memory->data(), bytes);
  slot->result.bytes = into.subspan(extent.begin - begin, extent.end - extent.begin);
  if (!queue_) queue_ = files_.file_system().NewQueue({.depth = options_.depth});
  queue_->Read(*slot->file, begin, into, static_cast<uint64_t>(slot - reads_.begin()));
}

ExtentReader::Finished ExtentReader::Wait() {
  if (at_hand_) {
    Finished result = FromCache(*at_hand_);
    at_hand_.reset();
    return result;
  }
  IoQueue::Completion done = queue_->Wait();
  Read& read = reads_[done.tag];
  read.file.reset();
  read.result.status = std::move(done.status);
  return std::move(read.result);
}

ExtentReader::Finished ExtentReader::FromCache(const AtHand& at_hand) {
  const Extent& extent = at_hand.extent;
  Finished result{.tag = extent.tag, .status = at_hand.status};
  if (!result.status.ok()) return result;
  if (options_.leave_cached) {
    result.cached = at_hand.file;
    return result;
  }
  const uint64_t bytes = extent.end - extent.begin;
  if (options_.map && bytes >= kMinMapBytes) {
    Result<MappedRange> mapped = MappedRange::Map(*at_hand.file, extent.begin, bytes);
    result.status = mapped.status();
    if (mapped.ok()) result.bytes = result.mapped.emplace(std::move(mapped).value()).bytes();
    if (result.status.kind() != StatusKind::kNotSupported) return result;
  }
  result.memory = NewBuffer(bytes);
  const std::span<std::byte> into(result.memory->data(), bytes);
  result.bytes = into;
  result.status = at_hand.file->ReadAt(extent.begin, into);
  return result;
}

// A few fixed sizes, so that the next read can reuse the memory.
uint64_t ExtentReader::BufferBytes(uint64_t bytes) {
  return bytes < kExtentBytes ? std::bit_ceil(std::max(bytes, kPageBytes)) : PageUp(bytes);
}

// New memory replaces the same amount of free memory: the total stays below the most that was ever in use.
std::unique_ptr<PageBuffer> ExtentReader::NewBuffer(uint64_t bytes) {
  bytes = BufferBytes(bytes);
  const auto fits = std::ranges::find_if(
      free_, [&](const auto& memory) { return memory->capacity >= bytes && memory->capacity <= 2 * bytes; });
  if (fits != free_.end()) {
    std::unique_ptr<PageBuffer> memory = std::move(*fits);
    free_.erase(fits);
    return memory;
  }
  for (uint64_t freed = 0; freed < bytes && !free_.empty(); free_.erase(free_.begin()))
    freed += free_.front()->capacity;
  return std::make_unique<PageBuffer>(bytes);
}

void ExtentReader::Recycle(std::unique_ptr<PageBuffer> memory) {
  if (memory && memory->capacity >= kMinKeptBytes) free_.push_back(std::move(memory));
}

}  // namespace cairn
