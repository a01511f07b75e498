#include "ckpt/io/window_file.h"

#include <fcntl.h>

#include <algorithm>

namespace cairn {
namespace {

// The headers of the first records of a container that is written page by page lie in it.
constexpr uint64_t kSmallWindowBytes = 24 << 10;

}  // namespace

WindowFile::WindowFile(File& file, uint64_t end) : file_(file), end_(end) {
  // Reads that look sequential would otherwise fetch megabytes each.
  if (file.descriptor() >= 0) (void)::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_RANDOM);
}

Status WindowFile::ReadAt(uint64_t offset, std::span<std::byte> bytes) {
  const uint64_t begin = PageDown(offset);
  if (offset > end_ || bytes.size() > end_ - offset || offset + bytes.size() > begin + kSmallWindowBytes)
    return file_.ReadAt(offset, bytes);
  auto window = std::ranges::find_if(windows_, [&](const Window& w) {
    return offset >= w.begin && offset + bytes.size() <= w.begin + w.bytes.size();
  });
  if (window == windows_.end()) {
    window = windows_.begin() + static_cast<ptrdiff_t>(oldest_);
    oldest_ = 1 - oldest_;
    window->begin = begin;
    window->bytes.resize(std::min(kSmallWindowBytes, end_ - begin));
    const Status status = file_.ReadAt(begin, window->bytes);
    if (!status.ok()) window->bytes.clear();
    CAIRN_RETURN_IF_ERROR(status);
  }
  const auto from = window->bytes.begin() + static_cast<ptrdiff_t>(offset - window->begin);
  std::copy_n(from, bytes.size(), bytes.begin());
  return OkStatus();
}

}  // namespace cairn
