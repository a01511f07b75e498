// The rows that are summed over come in slices. Of each, b is packed into tiles of columns; then each thread
// turns some columns of a into rows, in its cache, and multiplies them by all tiles.
#include "runtime/model/tiled_gemm.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "runtime/model/tiles.h"

namespace cairn {
namespace {

constexpr int64_t kDepth = 512;  // rows of a slice: its packed tiles stay in the second cache

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
      Turn(a.Part(0, row, a.rows, height), depth, turned.data());
      for (int64_t tile = 0; tile < TilesOf(b.columns); ++tile)
        MultiplyTile<T>({turned.data(), height, depth, depth}, packed + tile * kTile * depth,
                        c.Part(row, tile * kTile, height, width(tile)), /*adds=*/true);
    }
    ReleaseTiles<T>();
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

void AddTransposedProduct(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(c.stride(1) == 1 || c.size(1) == 1, "the rows of a sum must be dense");
  const at::Tensor left = WithDenseRows(a), right = WithDenseRows(b);
  if (a.scalar_type() == at::kFloat) return AddSlices<float>(c, left, right);
  AddSlices<at::BFloat16>(c, left, right);
}

}  // namespace cairn
