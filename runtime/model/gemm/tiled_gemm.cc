// The rows that are summed over come in slices. Of each, b is packed into tiles of columns; then each thread
// turns some columns of a into rows, in its cache, and multiplies them by all tiles.
//
// A tile is c [m, n] fp32 += a [m, k] b [k, n], a and b fp32 or bf16. bf16 comes in pairs: k is even, and b
// is packed as [k / 2, n, 2], since one instruction multiplies two pairs and adds both products.
#include "runtime/model/gemm/tiled_gemm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "ckpt/base/simd.h"
#include "runtime/model/gemm/gemm.h"

namespace cairn {
namespace {

constexpr int64_t kTile = 64;    // rows and columns of a product that stay in registers and the first cache
constexpr int64_t kDepth = 512;  // rows of a slice: its packed tiles stay in the second cache

constexpr int64_t TilesOf(int64_t elements, int64_t tile = kTile) { return (elements + tile - 1) / tile; }

// Elements along k that lie together in b.
template <typename T>
constexpr int64_t kPair = std::is_same_v<T, float> ? 1 : 2;
template <typename T>
constexpr int64_t Padded(int64_t depth) {
  return TilesOf(depth, kPair<T>) * kPair<T>;
}

// A matrix with dense rows.
template <typename T>
struct Matrix {
  T* data;
  int64_t rows, columns, stride;

  Matrix Part(int64_t row, int64_t column, int64_t height, int64_t width) const {
    return {data + row * stride + column, height, width, stride};
  }
};

// The loops work on plain words, so that the compiler vectorises them.
float* Words(float* data) { return data; }
const float* Words(const float* data) { return data; }
uint16_t* Words(at::BFloat16* data) { return reinterpret_cast<uint16_t*>(data); }
const uint16_t* Words(const at::BFloat16* data) { return reinterpret_cast<const uint16_t*>(data); }

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

CAIRN_SIMD_CLONES void PairRows(const uint16_t* from, int64_t stride, int64_t k, int64_t n, uint16_t* to) {
  for (int64_t row = 0; row + 1 < k; row += 2) {
    const uint16_t *first = from + row * stride, *second = first + stride;
    for (int64_t i = 0; i < n; ++i) {
      to[row * n + 2 * i] = first[i];
      to[row * n + 2 * i + 1] = second[i];
    }
  }
  if (k % 2 == 0) return;
  for (int64_t i = 0; i < n; ++i) {
    to[(k - 1) * n + 2 * i] = from[(k - 1) * stride + i];
    to[(k - 1) * n + 2 * i + 1] = 0;
  }
}

// b of a tile: `from` [k, n] -> `to`, Padded(k) * n elements; a missing row is 0.
void PackFactor(const Matrix<const float>& from, float* to) {
  CopyRows(from.data, from.stride, from.rows, from.columns, to);
}
void PackFactor(const Matrix<const at::BFloat16>& from, at::BFloat16* to) {
  PairRows(Words(from.data), from.stride, from.rows, from.columns, Words(to));
}

at::Tensor WithDenseRows(const at::Tensor& x) {
  return x.stride(1) == 1 || x.size(1) == 1 ? x : x.contiguous();
}

template <typename T>
Matrix<T> MatrixOf(const at::Tensor& x) {
  return {x.data_ptr<std::remove_const_t<T>>(), x.size(0), x.size(1), x.stride(0)};
}

// `packed` has room for all of b.
template <typename T>
void AddSlice(const Matrix<float>& c, const Matrix<const T>& a, const Matrix<const T>& b, T* packed) {
  const int64_t depth = Padded<T>(a.rows);
  const auto width = [&](int64_t tile) { return std::min(kTile, b.columns - tile * kTile); };
  at::parallel_for(0, TilesOf(b.columns), 1, [&](int64_t first, int64_t last) {
    for (int64_t tile = first; tile < last; ++tile)
      PackFactor(b.Part(0, tile * kTile, b.rows, width(tile)), packed + tile * kTile * depth);
  });
  at::parallel_for(0, TilesOf(a.columns), 1, [&](int64_t first, int64_t last) {
    std::vector<T> turned(kTile * depth);
    for (int64_t row = first * kTile; row < std::min(last * kTile, a.columns); row += kTile) {
      const int64_t height = std::min(kTile, a.columns - row);
      TurnWords(Words(a.data + row), a.stride, a.rows, height, depth, Words(turned.data()));
      for (int64_t tile = 0; tile < TilesOf(b.columns); ++tile)
        at::native::cpublas::brgemm(height, width(tile), depth, depth, width(tile), c.stride, /*add_C=*/true,
                                    turned.data(), packed + tile * kTile * depth,
                                    c.data + row * c.stride + tile * kTile, kPair<T> == 2);
    }
    at::native::cpublas::brgemm_release(kPair<T> == 2);  // frees what some CPUs hold for this thread
  });
}

template <typename T>
void AddSlices(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) {
  const Matrix<const T> left = MatrixOf<const T>(a), right = MatrixOf<const T>(b);
  std::vector<T> packed(TilesOf(right.columns) * kTile * Padded<T>(std::min(kDepth, left.rows)));
  for (int64_t begin = 0; begin < left.rows; begin += kDepth) {
    const int64_t depth = std::min(kDepth, left.rows - begin);
    AddSlice<T>(MatrixOf<float>(c), left.Part(begin, 0, depth, left.columns),
                right.Part(begin, 0, depth, right.columns), packed.data());
  }
}

}  // namespace

bool HasTiles(at::ScalarType type) {
  if (!HasBf16Products()) return false;  // oneDNN is off, or has no AVX-512
  if (type == at::kFloat) return __builtin_cpu_supports("avx512f");
  return type == at::kBFloat16 && __builtin_cpu_supports("avx512bf16");
}

void AddTransposedProduct(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(c.stride(1) == 1 || c.size(1) == 1, "the rows of a sum must be dense");
  const at::Tensor left = WithDenseRows(a), right = WithDenseRows(b);
  if (a.scalar_type() == at::kFloat) return AddSlices<float>(c, left, right);
  AddSlices<at::BFloat16>(c, left, right);
}

}  // namespace cairn
