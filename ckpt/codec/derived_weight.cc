#include "ckpt/codec/derived_weight.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "ckpt/codec/cast.h"

namespace cairn {
namespace {

constexpr size_t kDeriveBatch = 4096;  // elements; what they round to stays in the first-level cache

void Round(std::span<const std::byte> master, std::span<std::byte> weight) {
  Cast(Dtype::kF32, master, Dtype::kF16, weight, OnOverflow::kInfinity);
}

}  // namespace

bool FindUnderived(std::span<const std::byte> master, std::span<const std::byte> weight,
                   size_t max_exceptions, std::vector<MasterException>& exceptions) {
  const size_t count = weight.size() / 2;
  assert(master.size() == count * 4 && count <= UINT32_MAX);
  exceptions.clear();
  std::byte rounded[kDeriveBatch * 2];
  for (size_t at = 0; at < count; at += kDeriveBatch) {
    const size_t batch = std::min(kDeriveBatch, count - at);
    const std::byte* const given = weight.data() + at * 2;
    Round(master.subspan(at * 4, batch * 4), std::span(rounded).first(batch * 2));
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
  Round(master, weight);
  for (const MasterException& exception : exceptions)
    if (exception.index < weight.size() / 2)
      std::memcpy(weight.data() + exception.index * size_t{2}, &exception.high, 2);
}

}  // namespace cairn
