#include "ckpt/codec/erasure.h"

#include <isa-l/erasure_code.h>

#include <algorithm>

namespace cairn {

BlockSum::BlockSum(std::vector<unsigned char> coefficients)
    : sources_(static_cast<int>(coefficients.size())), tables_(32 * coefficients.size()) {
  ec_init_tables(sources_, 1, coefficients.data(), tables_.data());
}

// ISA-L takes pointers to bytes that it may change; it does not change tables and sources.
void BlockSum::Compute(std::span<const std::byte* const> sources, std::byte* out, size_t bytes) const {
  assert(static_cast<int>(sources.size()) == sources_);
  auto* target = reinterpret_cast<unsigned char*>(out);
  ec_encode_data(static_cast<int>(bytes), sources_, 1, const_cast<unsigned char*>(tables_.data()),
                 reinterpret_cast<unsigned char**>(const_cast<std::byte**>(sources.data())), &target);
}

ErasureCode::ErasureCode(int data, int parity)
    : data_(data), parity_(parity), generator_(static_cast<size_t>(data + parity) * data) {
  gf_gen_cauchy1_matrix(generator_.data(), data + parity, data);
  for (int column = 0; column < data; ++column) {
    const unsigned char scale = gf_inv(generator_[static_cast<size_t>(data) * data + column]);
    for (int row = data; row < data + parity; ++row) {
      unsigned char& entry = generator_[static_cast<size_t>(row) * data + column];
      entry = gf_mul(entry, scale);
    }
  }
}

Result<ErasureCode> ErasureCode::Make(int data, int parity) {
  if (data < 1 || parity < 1 || data > kMaxCodeBlocks - parity)
    return InvalidArgument(
        "an erasure code of {} data and {} parity blocks; each must be at least 1, and their sum at most {}",
        data, parity, kMaxCodeBlocks);
  return ErasureCode(data, parity);
}

// sources = G_s * data, so data = G_s^-1 * sources, and target = g_t * G_s^-1 * sources.
BlockSum ErasureCode::Express(int target, std::span<const int> sources) const {
  assert(static_cast<int>(sources.size()) == data_);
  const size_t n = data_;
  std::vector<unsigned char> rows(n * n), inverse(n * n), coefficients(n);
  for (size_t i = 0; i < n; ++i)
    std::copy_n(generator_.begin() + static_cast<ptrdiff_t>(sources[i] * n), n, rows.begin() + i * n);
  [[maybe_unused]] const int singular = gf_invert_matrix(rows.data(), inverse.data(), data_);
  assert(singular == 0);
  for (size_t i = 0; i < n; ++i)
    for (size_t k = 0; k < n; ++k) coefficients[i] ^= gf_mul(generator_[target * n + k], inverse[k * n + i]);
  return BlockSum(std::move(coefficients));
}

}  // namespace cairn
