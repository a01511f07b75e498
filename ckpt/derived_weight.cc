#include "ckpt/derived_weight.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "ckpt/simd.h"

namespace cairn {
namespace {

constexpr size_t kBatch = 4096;  // elements; what they round to stays in the first-level cache

// What Cast() gives (a test compares them for every master), several times as fast without its counts. The
// addition rounds: its last place is that of the half. Nothing is left to a branch, or it would not
// vectorise.
CAIRN_SIMD_CLONES void Round(const std::byte* master, size_t count, std::byte* __restrict weight) {
  constexpr uint32_t kTooLarge = 0x47800000;  // 2^16: infinity, as all above
  constexpr uint32_t kNormal = 0x38800000;    // 2^-14
  constexpr uint32_t kF32Infinity = 0x7f800000;
  for (size_t i = 0; i < count; ++i) {
    uint32_t x;
    std::memcpy(&x, master + i * 4, 4);
    const uint32_t m = x & 0x7fffffff;
    const uint32_t finite = m < kTooLarge ? m : kTooLarge;
    const uint32_t exponent = (m < kNormal ? kNormal : finite) >> 23;
    const uint32_t unit = (exponent + 13) << 23;
    const float sum = std::bit_cast<float>(finite) + std::bit_cast<float>(unit);
    const uint32_t rounded = std::bit_cast<uint32_t>(sum) - unit + ((exponent - (kNormal >> 23)) << 10);
    const uint32_t magnitude = m > kF32Infinity ? 0x7e00 | (m >> 13 & 0x1ff) : rounded;
    const auto result = static_cast<uint16_t>(magnitude | (x >> 16 & 0x8000));
    std::memcpy(weight + i * 2, &result, 2);
  }
}

}  // namespace

bool FindUnderived(std::span<const std::byte> master, std::span<const std::byte> weight,
                   size_t max_exceptions, std::vector<MasterException>& exceptions) {
  const size_t count = weight.size() / 2;
  assert(master.size() == count * 4 && count <= UINT32_MAX);
  exceptions.clear();
  std::byte rounded[kBatch * 2];
  for (size_t at = 0; at < count; at += kBatch) {
    const size_t batch = std::min(kBatch, count - at);
    const std::byte* const given = weight.data() + at * 2;
    Round(master.data() + at * 4, batch, rounded);
    if (std::memcmp(rounded, given, batch * 2) == 0) continue;
    for (size_t i = 0; i < batch; ++i) {
      if (std::memcmp(rounded + i * 2, given + i * 2, 2) == 0) continue;
      if (exceptions.size() == max_exceptions) return false;
      exceptions.push_back({.index = static_cast<uint32_t>(at + i)});
      std::memcpy(&exceptions.back().high, given + i * 2, 2);
    }
  }
  return true;
}

void DeriveWeight(std::span<const std::byte> master, std::span<const MasterException> exceptions,
                  std::span<std::byte> weight) {
  assert(master.size() == weight.size() * 2);
  Round(master.data(), weight.size() / 2, weight.data());
  for (const MasterException& exception : exceptions)
    if (exception.index < weight.size() / 2)
      std::memcpy(weight.data() + exception.index * size_t{2}, &exception.high, 2);
}

}  // namespace cairn
