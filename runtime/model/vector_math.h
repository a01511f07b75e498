// For loops over tensors that the compiler vectorises (ckpt/base/simd.h): elements as such loops read and
// write them, and the exponential.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Tensor.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "runtime/model/narrow_float.h"

namespace cairn {

// How an element type lies in memory (narrow_float.h).
template <typename T>
using WordOf =
    std::conditional_t<std::is_same_v<std::remove_const_t<T>, float>, float,
                       std::conditional_t<std::is_same_v<std::remove_const_t<T>, at::Half>, Fp16, Bf16>>;

template <typename T>
const WordOf<T>* Words(const T* data) {
  return reinterpret_cast<const WordOf<T>*>(data);
}
template <typename T>
WordOf<T>* Words(T* data) {
  return reinterpret_cast<WordOf<T>*>(data);
}

// Whether such loops take tensors of this kind: fp32, bf16 and fp16 on a CPU. Like oneDNN's, they can be
// switched off, and operations of libtorch do the same work as on a GPU.
inline bool HasWords(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  return x.is_cpu() && at::globalContext().userEnabledMkldnn() &&
         (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

// Calls `visit` with an element of the type of `x`, which HasWords.
template <typename Visit>
void VisitElementType(const at::Tensor& x, const Visit& visit) {
  if (x.scalar_type() == at::kFloat) return visit(float{});
  if (x.scalar_type() == at::kHalf) return visit(at::Half{});
  visit(at::BFloat16{});
}

// Calls `visit` with such an element and parts [first, last) of [0, count), on all threads. `grain`: the
// least of a part.
template <typename Visit>
void VisitParts(const at::Tensor& x, int64_t count, int64_t grain, const Visit& visit) {
  VisitElementType(x, [&](auto element) {
    at::parallel_for(0, count, grain, [&](int64_t first, int64_t last) { visit(element, first, last); });
  });
}

// e^x within 2 units of the last place, for x from -87 to 88, and what it is there for x beyond. Cody and
// Waite's reduction, the polynomial of Cephes' expf.
[[gnu::always_inline]] inline float ExpOf(float x) {
  x = std::min(std::max(x, -87.0F), 88.0F);
  constexpr float kRounds = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float turns = (x * 1.44269504F + kRounds) - kRounds;
  const float r = (x - turns * 0.693359375F) + turns * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1;
  return p * std::bit_cast<float>((static_cast<int32_t>(turns) + 127) << 23);
}

[[gnu::always_inline]] inline float SigmoidOf(float x) { return 1 / (1 + ExpOf(-x)); }

}  // namespace cairn
