#include "ckpt/codec/split_master.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "ckpt/base/simd.h"

namespace cairn {
namespace {

constexpr uint32_t kHalfway = 0x8000;
constexpr size_t kSplitBatch = 4096;  // elements; one batch in 32 of rounded weights holds an exception

// The master that the rule gives.
[[gnu::always_inline]] inline uint32_t Join(uint32_t weight, uint32_t low) {
  return (weight << 16) - (uint32_t{low > kHalfway} << 16) + low;
}

// Number of elements that the rule does not restore.
CAIRN_SIMD_CLONES uint32_t SplitBatch(const std::byte* weight, const std::byte* master, size_t count,
                                      std::byte* __restrict low) {
  uint32_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    uint16_t w;
    uint32_t m;
    std::memcpy(&w, weight + i * 2, 2);
    std::memcpy(&m, master + i * 4, 4);
    const auto half = static_cast<uint16_t>(m);
    std::memcpy(low + i * 2, &half, 2);
    wrong += Join(w, half) != m;
  }
  return wrong;
}

CAIRN_SIMD_CLONES void JoinAll(const std::byte* weight, const std::byte* low, size_t count,
                               std::byte* __restrict master) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t w, half;
    std::memcpy(&w, weight + i * 2, 2);
    std::memcpy(&half, low + i * 2, 2);
    const uint32_t m = Join(w, half);
    std::memcpy(master + i * 4, &m, 4);
  }
}

void ListExceptions(const std::byte* weight, const std::byte* master, size_t begin, size_t end,
                    std::vector<MasterException>& exceptions) {
  for (size_t i = begin; i < end; ++i) {
    uint16_t w;
    uint32_t m;
    std::memcpy(&w, weight + i * 2, 2);
    std::memcpy(&m, master + i * 4, 4);
    if (Join(w, m & 0xffff) != m)
      exceptions.push_back({static_cast<uint32_t>(i), static_cast<uint16_t>(m >> 16)});
  }
}

}  // namespace

bool SplitMaster(std::span<const std::byte> weight, std::span<const std::byte> master,
                 std::span<std::byte> low, size_t max_exceptions, std::vector<MasterException>& exceptions) {
  const size_t count = master.size() / 4;
  assert(weight.size() == count * 2 && low.size() == count * 2 && count <= UINT32_MAX);
  exceptions.clear();
  for (size_t at = 0; at < count; at += kSplitBatch) {
    const size_t batch = std::min(kSplitBatch, count - at);
    const uint32_t wrong =
        SplitBatch(weight.data() + at * 2, master.data() + at * 4, batch, low.data() + at * 2);
    if (exceptions.size() + wrong > max_exceptions) return false;
    if (wrong > 0) ListExceptions(weight.data(), master.data(), at, at + batch, exceptions);
  }
  return true;
}

void JoinMaster(std::span<const std::byte> weight, std::span<const std::byte> low,
                std::span<const MasterException> exceptions, std::span<std::byte> master) {
  const size_t count = master.size() / 4;
  assert(weight.size() == count * 2 && low.size() == count * 2);
  JoinAll(weight.data(), low.data(), count, master.data());
  for (const MasterException& exception : exceptions)
    if (exception.index < count)
      std::memcpy(master.data() + exception.index * size_t{4} + 2, &exception.high, 2);
}

}  // namespace cairn
