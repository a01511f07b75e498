#include "ckpt/io/stream_copy.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace cairn {

#ifdef __x86_64__
namespace {

constexpr size_t kLineBytes = 64;

// Both copy whole lines to an aligned target.
void StreamLines(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += sizeof(__m128i))
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
}

[[gnu::target("avx2")]] void StreamLinesAvx2(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += sizeof(__m256i))
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
}

}  // namespace

void StreamCopy(std::byte* to, std::span<const std::byte> from) {
  static const auto lines = __builtin_cpu_supports("avx2") ? StreamLinesAvx2 : StreamLines;
  const size_t head = std::min(from.size(), -reinterpret_cast<uintptr_t>(to) % kLineBytes);
  const size_t whole = (from.size() - head) / kLineBytes * kLineBytes;
  std::memcpy(to, from.data(), head);
  lines(to + head, from.data() + head, whole);
  std::memcpy(to + head + whole, from.data() + head + whole, from.size() - head - whole);
}

void StreamFence() { _mm_sfence(); }
#else
void StreamCopy(std::byte* to, std::span<const std::byte> from) { std::memcpy(to, from.data(), from.size()); }
void StreamFence() {}
#endif

}  // namespace cairn
