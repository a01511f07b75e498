// The file is read in windows; the caller uses one while the next ones are read. They may finish in any
// order. Reads past the page cache are of whole pages, so the rest after the last whole page is a separate
// window.

#include "ckpt/io/file_scan.h"

#include <algorithm>

namespace cairn {
namespace {

constexpr int kWindowsInFlight = 3;

}  // namespace

FileScan::FileScan(FileSystem& fs, const std::string& path, uint64_t bytes, Direct direct, bool may_map)
    : path_(path),
      bytes_(bytes),
      files_(fs, ""),
      reader_(files_, {.depth = kWindowsInFlight, .direct = direct, .map = may_map}) {}

Result<std::unique_ptr<FileScan>> FileScan::Open(FileSystem& fs, const std::string& path, uint64_t bytes,
                                                 Direct direct, bool may_map) {
  std::unique_ptr<FileScan> scan(new FileScan(fs, path, bytes, direct, may_map));
  CAIRN_RETURN_IF_ERROR(scan->files_.Get(path, Direct::kOff).status());
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
  reader_.Recycle(std::move(window_.memory));
  window_ = {};
  StartReads();
  while (!ready_.contains(offset_)) {
    ExtentReader::Finished done = reader_.Wait();
    ready_.emplace(done.tag, std::move(done));
    StartReads();
  }
  window_ = std::move(ready_.extract(offset_).mapped());
  current_ = window_.bytes;
  return window_.status;
}

// A window that is waited for is one of those in flight, so that no more of them lie in memory than these and
// the one in use.
void FileScan::StartReads() {
  while (started_ < bytes_ && !reader_.full() && reader_.waiting() + ready_.size() < kWindowsInFlight) {
    uint64_t end = std::min(bytes_, started_ + kExtentBytes);
    if (PageDown(end) > started_) end = PageDown(end);
    reader_.Start({.file = path_, .begin = started_, .end = end, .tag = started_});
    started_ = end;
  }
}

}  // namespace cairn
