#include "ckpt/stream_copy.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace cairn {
namespace {

constexpr size_t kLineBytes = 64;

}  // namespace

void StreamCopy(std::byte* to, std::span<const std::byte> from) {
  const std::byte* source = from.data();
  size_t left = from.size();
#ifdef __SSE2__
  const size_t head = std::min(left, -reinterpret_cast<uintptr_t>(to) % kLineBytes);
  std::memcpy(to, source, head);
  to += head, source += head, left -= head;
  for (; left >= kLineBytes; to += kLineBytes, source += kLineBytes, left -= kLineBytes)
    for (size_t i = 0; i < kLineBytes; i += sizeof(__m128i))
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
  _mm_sfence();  // before another thread is told that the bytes are there
#endif
  std::memcpy(to, source, left);
}

}  // namespace cairn
