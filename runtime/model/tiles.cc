#include "runtime/model/tiles.h"

#include <ATen/Context.h>

#include <algorithm>

#include "ckpt/base/simd.h"
#include "runtime/model/vector_math.h"

namespace cairn {
namespace {

// [k, n] -> [n, `stride`], in blocks of rows, so that what is written is whole cache lines.
template <typename Word>
CAIRN_SIMD_CLONES void TurnWords(const Word* from, int64_t from_stride, int64_t k, int64_t n, int64_t stride,
                                 Word* to) {
  constexpr int64_t kBlock = 16;
  for (int64_t row = 0; row < k; row += kBlock) {
    const int64_t rows = std::min(kBlock, k - row);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t r = 0; r < rows; ++r) to[i * stride + row + r] = from[(row + r) * from_stride + i];
  }
}

CAIRN_SIMD_CLONES void CopyRows(const float* from, int64_t stride, int64_t k, int64_t n, float* to) {
  for (int64_t row = 0; row < k; ++row)
    for (int64_t i = 0; i < n; ++i) to[row * n + i] = from[row * stride + i];
}

CAIRN_SIMD_CLONES void PairRows(const Bf16* from, int64_t stride, int64_t k, int64_t n, Bf16* to) {
  for (int64_t row = 0; row + 1 < k; row += 2) {
    const Bf16 *first = from + row * stride, *second = first + stride;
    for (int64_t i = 0; i < n; ++i) {
      to[row * n + 2 * i] = first[i];
      to[row * n + 2 * i + 1] = second[i];
    }
  }
  if (k % 2 == 0) return;
  for (int64_t i = 0; i < n; ++i) {
    to[(k - 1) * n + 2 * i] = from[(k - 1) * stride + i];
    to[(k - 1) * n + 2 * i + 1] = {};
  }
}

}  // namespace

bool HasTiles(at::ScalarType type) {
  if (!at::globalContext().userEnabledMkldnn()) return false;
  if (type == at::kFloat) return __builtin_cpu_supports("avx512f");
  return type == at::kBFloat16 && __builtin_cpu_supports("avx512bf16");
}

void PackFactor(const Matrix<const float>& from, float* to) {
  CopyRows(from.data, from.stride, from.rows, from.columns, to);
}
void PackFactor(const Matrix<const at::BFloat16>& from, at::BFloat16* to) {
  PairRows(Words(from.data), from.stride, from.rows, from.columns, Words(to));
}

void PackTurned(const Matrix<const float>& from, float* to) {
  TurnWords(from.data, from.stride, from.rows, from.columns, from.rows, to);
}
void PackTurned(const Matrix<const at::BFloat16>& from, at::BFloat16* to) {  // pairs as one word
  TurnWords(reinterpret_cast<const uint32_t*>(from.data), from.stride / 2, from.rows, from.columns / 2,
            from.rows, reinterpret_cast<uint32_t*>(to));
}

void Turn(const Matrix<const float>& from, int64_t stride, float* to) {
  TurnWords(from.data, from.stride, from.rows, from.columns, stride, to);
}
void Turn(const Matrix<const at::BFloat16>& from, int64_t stride, at::BFloat16* to) {
  TurnWords(Words(from.data), from.stride, from.rows, from.columns, stride, Words(to));
}

}  // namespace cairn
