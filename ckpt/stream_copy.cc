#include "ckpt/stream_copy.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace cairn {

#ifdef __SSE2__

void StreamCopy(std::byte* to, const std::byte* from, size_t bytes) {
  constexpr size_t kLine = 64, kVector = sizeof(__m128i);
  const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(to) % kLine);
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {  // whole lines, so that none is written in parts
    __m128i line[kLine / kVector];
    std::memcpy(line, from + at, kLine);
    for (size_t i = 0; i < kLine / kVector; ++i)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + i, line[i]);
  }
  std::memcpy(to + at, from + at, bytes - at);
  _mm_sfence();  // these stores are not ordered by locks
}

#else

void StreamCopy(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace cairn
