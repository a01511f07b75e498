// Small matrix products on a CPU, which larger ones are put together of: oneDNN's kernel (brgemm), which
// libtorch exports, and what brings matrices into the layouts that it wants.
//
// c [m, n] fp32 (+)= a [m, k] b [k, n], a and b fp32 or bf16. bf16 comes in pairs: k is even, and b is packed
// as [k / 2, n, 2], since one instruction multiplies two pairs and adds both products.
#pragma once

#include <ATen/native/CPUBlas.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <type_traits>

namespace cairn {

constexpr int64_t kTile =
    64;  // rows and columns of a product that stay in a core's registers and first cache

// Whether this CPU multiplies such elements with that kernel.
bool HasTiles(at::ScalarType type);

// Elements along k that lie together in b.
template <typename T>
constexpr int64_t kPair = std::is_same_v<T, float> ? 1 : 2;

constexpr int64_t TilesOf(int64_t elements, int64_t tile = kTile) { return (elements + tile - 1) / tile; }
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

// As b. `from` [k, n] -> `to`, Padded(k) * n elements; a missing row is 0.
void PackFactor(const Matrix<const float>& from, float* to);
void PackFactor(const Matrix<const at::BFloat16>& from, at::BFloat16* to);

// As b. `from` [n, k] -> `to`, k * n elements; bf16: k and the stride are even.
void PackTurned(const Matrix<const float>& from, float* to);
void PackTurned(const Matrix<const at::BFloat16>& from, at::BFloat16* to);

// As a. `from` [k, m] -> `to` [m, `stride`]; columns from k on are left as they are.
void Turn(const Matrix<const float>& from, int64_t stride, float* to);
void Turn(const Matrix<const at::BFloat16>& from, int64_t stride, at::BFloat16* to);

// `b` is packed; a.columns is even for bf16, c.columns are b's.
template <typename T>
void MultiplyTile(const Matrix<const T>& a, const T* b, const Matrix<float>& c, bool adds) {
  at::native::cpublas::brgemm(c.rows, c.columns, a.columns, a.stride, c.columns, c.stride, adds, a.data, b,
                              c.data, kPair<T> == 2);
}
// Once a thread has multiplied all its tiles: frees what some CPUs hold for it.
template <typename T>
void ReleaseTiles() {
  at::native::cpublas::brgemm_release(kPair<T> == 2);
}

}  // namespace cairn
