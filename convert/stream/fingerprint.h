// Fingerprints of tensors: the same for the same values under any topology, read in any order and in any
// pieces.
//
// The sum of a tensor is, modulo 2^128, over its elements
//   key(i) * bits(i)
// where i is the element's index in the whole tensor's row-major order, bits(i) its bytes as an unsigned
// number of at most 64 bits, and key(i) = 1 + mix(seed + i * 0x9e3779b97f4a7c15) with SplitMix64's finaliser
// as mix and a seed taken from the tensor's display name. Each element contributes independently, so pieces
// of a tensor can be summed separately and added. The fingerprint is XXH3-128 over (display name, role,
// dtype, shape, sum); that of a step is XXH3-128 over the sorted list of display names and fingerprints.
// Random states (Role::kRng) belong to one topology and are left out.
//
// What it detects. mix and the step to its argument are bijections of 64-bit numbers, so the keys of a tensor
// are distinct and lie in [1, 2^64]. Hence always:
// - one changed element, b to c: the sum changes by key * (c - b), which is not 0 and smaller than 2^128 in
// magnitude;
// - two swapped elements b != c at i != j: by (key(i) - key(j)) * (c - b), not 0 and smaller than 2^128 for
// the same reason. Any other change goes undetected only if a sum of products with pseudo-random keys
// cancels: of each changed element's 2^64 possible keys at most one does that, so by chance about once in
// 2^64. Name, dtype and shape are distinguished by XXH3-128. It is not a signature: the keys are public, and
// an attacker can compute a collision.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "ckpt/base/digest.h"
#include "convert/stream/block_stream.h"

namespace cairn {

class TensorFingerprint {
 public:
  explicit TensorFingerprint(const TensorEntry& tensor);

  // The elements from row-major index `begin` of the tensor on. Requires whole elements; each element once.
  void Add(uint64_t begin, std::span<const std::byte> bytes);
  Digest Finish(const TensorEntry& tensor) const;
  // The sum so far, low half first; and adds another sum to it.
  std::array<uint64_t, 2> sum() const {
    return {static_cast<uint64_t>(sum_), static_cast<uint64_t>(sum_ >> 64)};
  }
  void AddSum(const std::array<uint64_t, 2>& sum) {
    sum_ += static_cast<unsigned __int128>(sum[1]) << 64 | sum[0];
  }
  bool operator==(const TensorFingerprint&) const = default;

 private:
  uint64_t seed_;
  uint64_t element_bytes_;
  unsigned __int128 sum_ = 0;
};

struct NamedFingerprint {
  std::string name;  // DisplayName()
  Digest digest;
  bool operator==(const NamedFingerprint&) const = default;
};

struct Fingerprints {
  Digest overall{};
  std::vector<NamedFingerprint> tensors;  // sorted by name, without random states
  bool operator==(const Fingerprints&) const = default;
};

// Sorts and adds the overall one. Names are distinct.
Fingerprints Combine(std::vector<NamedFingerprint> tensors);

// Sums all tensors of a catalog while they stream by.
class StepFingerprint {
 public:
  explicit StepFingerprint(std::span<const TensorEntry> tensors) : sums_(tensors.begin(), tensors.end()) {}
  void Add(const Block& block) { sums_[block.tensor].Add(block.begin, block.bytes); }
  // The sum of one tensor, to take separately and to add.
  TensorFingerprint& of(uint32_t tensor) { return sums_[tensor]; }
  const TensorFingerprint& of(uint32_t tensor) const { return sums_[tensor]; }
  Fingerprints Finish(std::span<const TensorEntry> tensors) const;  // the same ones

 private:
  std::vector<TensorFingerprint> sums_;
};

// Reads every tensor, verified. `advance` gets the bytes of each block; may be empty.
Result<StepFingerprint> SumsOf(CheckpointSource& step, uint64_t max_memory = kDefaultMaxMemory,
                               const std::function<void(uint64_t)>& advance = {});
inline Result<Fingerprints> FingerprintOf(CheckpointSource& step, uint64_t max_memory = kDefaultMaxMemory,
                                          const std::function<void(uint64_t)>& advance = {}) {
  CAIRN_ASSIGN_OR_RETURN(const StepFingerprint sums, SumsOf(step, max_memory, advance));
  return sums.Finish(step.catalog().tensors);
}

}  // namespace cairn
