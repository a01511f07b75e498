#include "runtime/model/norm_rows.h"

#include "ckpt/base/simd.h"

namespace cairn {
namespace {

// A team of one thread. Sums are several chains, as an addition waits for the one before it.
struct OneThread {
  template <typename F>
  [[gnu::always_inline]] void Visit(int64_t n, F f) const {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) f(i);
  }

  template <typename F>
  [[gnu::always_inline]] float Sum(int64_t n, F f) const {
    const int64_t part = n / 4;
    float a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
    for (int64_t i = 0; i < part; ++i) {
      a += f(i);
      b += f(part + i);
      c += f(2 * part + i);
      d += f(3 * part + i);
    }
    for (int64_t i = 4 * part; i < n; ++i) a += f(i);
    return (a + b) + (c + d);
  }

  template <typename F>
  [[gnu::always_inline]] TwoSums SumTwo(int64_t n, F f) const {
    const int64_t half = n / 2;
    float a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
    for (int64_t i = 0; i < half; ++i) {
      const TwoSums low = f(i), high = f(half + i);
      a += low.first;
      b += low.second;
      c += high.first;
      d += high.second;
    }
    if (n % 2 == 1) {
      const TwoSums last = f(n - 1);
      a += last.first;
      b += last.second;
    }
    return {a + c, b + d};
  }

  static constexpr bool leads() { return true; }
};

template <typename T>
[[gnu::always_inline]] inline void ForwardEachRow(const NormForward<T, float>& norm, int64_t begin,
                                                  int64_t end) {
  for (int64_t row = begin; row < end; ++row) NormRow(OneThread(), norm, row);
}

template <typename T>
[[gnu::always_inline]] inline void BackwardEachRow(const NormBackward<T, float>& norm, int64_t begin,
                                                   int64_t end, NormWeightGrads grads) {
  for (int64_t row = begin; row < end; ++row) NormGradRow(OneThread(), norm, row, grads);
}

}  // namespace

CAIRN_SIMD_CLONES void NormRows(const NormForward<float, float>& norm, int64_t begin, int64_t end) {
  ForwardEachRow(norm, begin, end);
}
CAIRN_SIMD_CLONES void NormRows(const NormForward<Bf16, float>& norm, int64_t begin, int64_t end) {
  ForwardEachRow(norm, begin, end);
}
CAIRN_SIMD_CLONES void NormRows(const NormForward<Fp16, float>& norm, int64_t begin, int64_t end) {
  ForwardEachRow(norm, begin, end);
}

CAIRN_SIMD_CLONES void NormGradRows(const NormBackward<float, float>& norm, int64_t begin, int64_t end,
                                    NormWeightGrads grads) {
  BackwardEachRow(norm, begin, end, grads);
}
CAIRN_SIMD_CLONES void NormGradRows(const NormBackward<Bf16, float>& norm, int64_t begin, int64_t end,
                                    NormWeightGrads grads) {
  BackwardEachRow(norm, begin, end, grads);
}
CAIRN_SIMD_CLONES void NormGradRows(const NormBackward<Fp16, float>& norm, int64_t begin, int64_t end,
                                    NormWeightGrads grads) {
  BackwardEachRow(norm, begin, end, grads);
}

}  // namespace cairn
