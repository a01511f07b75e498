#include "ckpt/io/page_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "ckpt/base/posix_error.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#endif

namespace cairn {
namespace {

constexpr long kSysCachestat = 451;  // Linux 6.5, on every architecture

struct CachestatRange {
  uint64_t offset;
  uint64_t bytes;
};
struct Cachestat {  // pages
  uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

// Older kernels report it for a mapping.
std::optional<uint64_t> CachedByMincore(int fd, uint64_t begin, uint64_t length) {
  void* base = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(begin));
  if (base == MAP_FAILED) return std::nullopt;
  std::vector<unsigned char> pages((length + kPageBytes - 1) / kPageBytes);
  const bool told = ::mincore(base, length, pages.data()) == 0;
  ::munmap(base, length);
  if (!told) return std::nullopt;
  return kPageBytes * static_cast<uint64_t>(std::ranges::count_if(pages, [](int p) { return p & 1; }));
}

}  // namespace

std::optional<uint64_t> CachedBytes(const File& file, uint64_t offset, uint64_t bytes) {
  const int fd = file.descriptor();
  if (fd < 0 || bytes == 0) return std::nullopt;
  const uint64_t begin = PageDown(offset);
  const CachestatRange range{begin, offset + bytes - begin};
  Cachestat stat{};
  if (::syscall(kSysCachestat, fd, &range, &stat, 0) == 0) return stat.cached * kPageBytes;
  return CachedByMincore(fd, begin, range.bytes);
}

void WillNeed(const File& file, uint64_t offset, uint64_t bytes) {
  if (file.descriptor() >= 0)
    (void)::posix_fadvise(file.descriptor(), static_cast<off_t>(offset), static_cast<off_t>(bytes),
                          POSIX_FADV_WILLNEED);
}

Result<MappedRange> MappedRange::Map(const File& file, uint64_t offset, uint64_t bytes) {
  if (file.descriptor() < 0) return NotSupported("{}: not a file to map", file.path());
  const uint64_t begin = PageDown(offset);
  const uint64_t length = offset + bytes - begin;
  void* base = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, file.descriptor(), static_cast<off_t>(begin));
  if (base == MAP_FAILED) return PosixError("map", file.path(), errno);
  MappedRange range(base, length);
  if (::madvise(base, length, MADV_POPULATE_READ) != 0) {
    if (errno == EFAULT)
      return Corrupt("{} ends before byte {}; the file was truncated", file.path(), offset + bytes);
    return NotSupported("map {}: {}", file.path(), strerror(errno));
  }
  range.bytes_ = {static_cast<const std::byte*>(base) + (offset - begin), bytes};
  return range;
}

MappedRange::~MappedRange() {
  if (base_ != nullptr) ::munmap(base_, length_);
}

}  // namespace cairn
