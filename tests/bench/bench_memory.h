// Memory for measurements: warm buffers, and the state that free memory is in.
//
// A virtual machine may give free pages back to its host (free page reporting of virtio-balloon does so two
// seconds after they were freed). A page returned from there costs about ten times as much as one that
// another process has just freed, in the page cache as in a process. Code that writes to new pages must
// therefore be timed in both states: as found, after Settle(), and recycled, after RecyclePages() of
// bench_disk.h.
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

// Touches `bytes` of new memory once; `huge` asks for huge pages. Seconds, without mapping and unmapping.
Result<double> TouchFresh(uint64_t bytes, bool huge);

// Makes free memory "as found": waits until freed pages went back to the host.
void Settle(double seconds);

// memcpy by this many threads, each a contiguous part. Requires equal sizes.
void CopyBy(int threads, std::span<std::byte> to, std::span<const std::byte> from);

}  // namespace cairn
