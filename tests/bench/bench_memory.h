// Memory for measurements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ckpt/base/status.h"

namespace cairn {

// Memory that is touched, in huge pages if available, aligned to a page.
class WarmBuffer {
 public:
  // Errors: NoSpace.
  static Result<WarmBuffer> Make(uint64_t bytes);
  WarmBuffer(WarmBuffer&& other) noexcept;
  WarmBuffer& operator=(WarmBuffer&&) = delete;
  ~WarmBuffer();

  std::span<std::byte> bytes() { return {data_, size_}; }

 private:
  WarmBuffer(std::byte* data, uint64_t size) : data_(data), size_(size) {}
  std::byte* data_;
  uint64_t size_;
};

// Pseudo-random bits: no disk or file system gains from compressing them.
void FillWithNoise(std::span<std::byte> bytes, uint64_t seed);

// memcpy by this many threads, each a contiguous part. Requires equal sizes.
void CopyBy(int threads, std::span<std::byte> to, std::span<const std::byte> from);

}  // namespace cairn
