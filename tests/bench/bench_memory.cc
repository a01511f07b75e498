#include "tests/bench/bench_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "ckpt/io/file_system.h"

namespace cairn {

Result<WarmBuffer> WarmBuffer::Make(uint64_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return NoSpace("cannot map {} bytes of memory: {}; take a smaller --bytes", bytes, strerror(errno));
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);
  auto* data = static_cast<std::byte*>(memory);
  for (uint64_t at = 0; at < bytes; at += kPageBytes)
    *static_cast<volatile std::byte*>(data + at) = std::byte{1};
  return WarmBuffer(data, bytes);
}

WarmBuffer::WarmBuffer(WarmBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

WarmBuffer::~WarmBuffer() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void FillWithNoise(std::span<std::byte> bytes, uint64_t seed) {
  uint64_t x = seed * 2 + 1;
  for (size_t at = 0; at < bytes.size(); at += sizeof x) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;  // xorshift64
    std::memcpy(bytes.data() + at, &x, std::min(sizeof x, bytes.size() - at));
  }
}

void CopyBy(int threads, std::span<std::byte> to, std::span<const std::byte> from) {
  const size_t part = (to.size() + threads - 1) / threads;
  std::vector<std::jthread> workers;
  for (size_t at = part; at < to.size(); at += part)
    workers.emplace_back([=] { std::memcpy(&to[at], &from[at], std::min(part, to.size() - at)); });
  std::memcpy(to.data(), from.data(), std::min(part, to.size()));
}

}  // namespace cairn
