#include "ckpt/page_cache.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "ckpt/posix_error.h"

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

uint64_t PageDown(uint64_t offset) { return offset / kPageBytes * kPageBytes; }

// Older kernels tell it of a mapping.
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

Result<MappedFile> MappedFile::Map(const File& file, uint64_t bytes) {
  if (file.descriptor() < 0) return NotSupported("{}: not a file to map", file.path());
  void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (base == MAP_FAILED) return PosixError("map", file.path(), errno);
  MappedFile mapped;
  mapped.base_ = base;
  mapped.bytes_ = bytes;
  mapped.path_ = file.path();
  return mapped;
}

MappedFile::~MappedFile() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

Result<std::span<const std::byte>> MappedFile::Range(uint64_t offset, uint64_t bytes) const {
  auto* const base = static_cast<std::byte*>(base_);
  const uint64_t begin = PageDown(offset);
  if (::madvise(base + begin, offset + bytes - begin, MADV_POPULATE_READ) == 0)
    return std::span<const std::byte>(base + offset, bytes);
  if (errno == EFAULT)
    return Corrupt("{} ends before byte {}; the file was truncated", path_, offset + bytes);
  return NotSupported("map {}: {}", path_, strerror(errno));
}

}  // namespace cairn
