// The part of a file that is in the page cache, and a view of it in place.
//
// Reading cached bytes through the kernel costs a copy into memory that must then be read again to be
// digested; a view of the cache is digested and copied in one go (measured: 1.3 to 1.6 times as fast).
// Only for files with a descriptor (file_system.h).
#pragma once

#include <optional>
#include <span>
#include <utility>

#include "ckpt/io/file_system.h"

namespace cairn {

// How many bytes of [offset, offset + bytes), in whole pages, lie in the page cache; nullopt if that is
// not known.
std::optional<uint64_t> CachedBytes(const File& file, uint64_t offset, uint64_t bytes);

// Asks the kernel to fetch these bytes in the background.
void WillNeed(const File& file, uint64_t offset, uint64_t bytes);

// Bytes of a file in place, read-only.
//
// All pages are present before Map() returns, so a file that is too short is an error and not a signal.
// Only a file that is cut short while it is mapped still kills the process (SIGBUS): keep mappings short, and
// to files that nobody writes. Removing the file does no harm.
class MappedRange {
 public:
  // Errors: NotSupported (no descriptor, or an old kernel), Corrupt if the file ends before, IoError.
  static Result<MappedRange> Map(const File& file, uint64_t offset, uint64_t bytes);
  MappedRange(MappedRange&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), length_(other.length_), bytes_(other.bytes_) {}
  MappedRange& operator=(MappedRange&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(length_, other.length_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedRange();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  MappedRange(void* base, size_t length) : base_(base), length_(length) {}

  void* base_;  // page-aligned
  size_t length_;
  std::span<const std::byte> bytes_;
};

}  // namespace cairn
