// A systematic erasure code over GF(2^8): `data` blocks and `parity` blocks computed from them; any `data`
// blocks of the two kinds give all others. The arithmetic is ISA-L's.
//
// The parity part of the generator is a Cauchy matrix (any data rows of the generator are independent) whose
// columns are scaled so that its first row is all ones: scaling keeps every minor from vanishing, and makes
// the first parity block the plain xor of the data.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

inline constexpr int kMaxCodeBlocks = 32;  // data + parity; bounds the memory of a stripe

// out = sum of coefficient * source over GF(2^8).
class BlockSum {
 public:
  explicit BlockSum(std::vector<unsigned char> coefficients);
  // One source per coefficient, `bytes` long each; `out` must not alias a source. Requires bytes < 2 GiB.
  void Compute(std::span<const std::byte* const> sources, std::byte* out, size_t bytes) const;

 private:
  int sources_;
  std::vector<unsigned char> tables_;  // ISA-L's, 32 bytes per coefficient
};

class ErasureCode {
 public:
  // Errors: InvalidArgument unless data >= 1, parity >= 1 and both together at most kMaxCodeBlocks.
  static Result<ErasureCode> Make(int data, int parity);

  int data() const { return data_; }
  int parity() const { return parity_; }

  // How block `target` follows from the blocks `sources`: data() different ones, in the order that Compute
  // takes them. Blocks are numbered data first.
  BlockSum Express(int target, std::span<const int> sources) const;

 private:
  ErasureCode(int data, int parity);
  int data_;
  int parity_;
  std::vector<unsigned char> generator_;  // (data + parity) x data
};

}  // namespace cairn
