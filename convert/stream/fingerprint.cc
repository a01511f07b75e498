// The header has the formula and what it detects; this file computes it fast. A key is taken in two halves
// of 32 bits, so that the products fit into 64-bit lanes, which the compiler vectorises. The lanes are added
// to the 128-bit sum every 2^15 elements, before they can overflow. Elements of 8 bytes are multiplied in
// 128 bits.

#include "convert/stream/fingerprint.h"

#include <algorithm>
#include <cstring>

#include "ckpt/base/simd.h"

namespace cairn {
namespace {

constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
constexpr uint64_t kLow = 0xffffffff;
using Sum = unsigned __int128;

[[gnu::always_inline]] inline uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Sum over `count` elements of (1 + Mix(at + i * kStep)) * bits, in 64-bit lanes that cannot overflow: the
// products of either half of the key with at most 16 bits leave room for 2^16 of them, those with 32 bits are
// split once more.
template <typename T>
[[gnu::always_inline]] inline Sum SumLanes(const std::byte* data, uint64_t count, uint64_t at) {
  constexpr uint64_t kBatch = 1 << 15;
  Sum sum = 0;
  for (uint64_t begin = 0; begin < count; begin += kBatch) {
    const uint64_t n = std::min(kBatch, count - begin);
    const std::byte* batch = data + begin * sizeof(T);
    const uint64_t first = at + begin * kStep;
    uint64_t low = 0, middle = 0, high = 0;  // worth 1, 2^32 and 2^64
    for (uint64_t i = 0; i < n; ++i) {
      T value;
      std::memcpy(&value, batch + i * sizeof(T), sizeof(T));
      const uint64_t bits = value;
      const uint64_t key = Mix(first + i * kStep);
      const uint64_t a = (key & kLow) * bits;
      const uint64_t b = (key >> 32) * bits;
      if constexpr (sizeof(T) <= 2) {
        low += a + bits;
        middle += b;
      } else {
        low += (a & kLow) + bits;
        middle += (a >> 32) + (b & kLow);
        high += b >> 32;
      }
    }
    sum += Sum{low} + (Sum{middle} << 32) + (Sum{high} << 64);
  }
  return sum;
}

CAIRN_SIMD_CLONES Sum SumOf8(const std::byte* data, uint64_t count, uint64_t at) {
  return SumLanes<uint8_t>(data, count, at);
}
CAIRN_SIMD_CLONES Sum SumOf16(const std::byte* data, uint64_t count, uint64_t at) {
  return SumLanes<uint16_t>(data, count, at);
}
CAIRN_SIMD_CLONES Sum SumOf32(const std::byte* data, uint64_t count, uint64_t at) {
  return SumLanes<uint32_t>(data, count, at);
}
Sum SumOf64(const std::byte* data, uint64_t count, uint64_t at) {
  Sum sum = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t bits;
    std::memcpy(&bits, data + i * 8, 8);
    sum += Sum{Mix(at + i * kStep)} * bits + bits;
  }
  return sum;
}

}  // namespace

TensorFingerprint::TensorFingerprint(const TensorEntry& tensor) : element_bytes_(SizeOf(tensor.dtype)) {
  const Digest name = DigestOf(DisplayName(tensor));
  std::memcpy(&seed_, name.data(), sizeof(seed_));
}

void TensorFingerprint::Add(uint64_t begin, std::span<const std::byte> bytes) {
  const uint64_t at = seed_ + begin * kStep;
  const uint64_t count = bytes.size() / element_bytes_;
  switch (element_bytes_) {
    case 1:
      sum_ += SumOf8(bytes.data(), count, at);
      break;
    case 2:
      sum_ += SumOf16(bytes.data(), count, at);
      break;
    case 4:
      sum_ += SumOf32(bytes.data(), count, at);
      break;
    default:
      sum_ += SumOf64(bytes.data(), count, at);
  }
}

Digest TensorFingerprint::Finish(const TensorEntry& tensor) const {
  return DigestOf(fmt::format("{}|{}|{}|{}|{:016x}{:016x}", DisplayName(tensor), Name(tensor.role),
                              Name(tensor.dtype), ToString(tensor.spec.shape),
                              static_cast<uint64_t>(sum_ >> 64), static_cast<uint64_t>(sum_)));
}

StepFingerprint::StepFingerprint(const TensorTable& catalog) : tensors_(catalog.tensors) {
  for (const TensorEntry& tensor : tensors_) sums_.emplace_back(tensor);
}

Fingerprints Combine(std::vector<NamedFingerprint> tensors) {
  std::ranges::sort(tensors, {}, &NamedFingerprint::name);
  Hasher hasher;
  for (const NamedFingerprint& tensor : tensors) {
    const std::string line = fmt::format("{} {}\n", ToHex(tensor.digest), tensor.name);
    hasher.Update(std::as_bytes(std::span(line)));
  }
  return {hasher.Finish(), std::move(tensors)};
}

Fingerprints StepFingerprint::Finish() const {
  std::vector<NamedFingerprint> tensors;
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (tensors_[i].role != Role::kRng)
      tensors.push_back({DisplayName(tensors_[i]), sums_[i].Finish(tensors_[i])});
  return Combine(std::move(tensors));
}

Result<StepFingerprint> SumsOf(CheckpointSource& step, uint64_t max_memory,
                               const std::function<void(uint64_t)>& advance) {
  StepFingerprint sums(step.catalog());
  step.SetCacheBytes(ReaderCacheFor(max_memory));
  CAIRN_RETURN_IF_ERROR(
      StreamBlocks(step, AllTensors(step.catalog()), BlockBytesFor(max_memory), [&](const Block& block) {
        sums.Add(block);
        if (advance) advance(block.bytes.size());
        return OkStatus();
      }));
  return sums;
}

}  // namespace cairn
