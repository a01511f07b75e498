// c += aᵀ b into fp32, for the gradient of a weight: no temporary of c's size, no intermediate rounding to 16
// bits. Without it a training step of 42 million parameters takes 17 % more CPU time in fp32 and 29 % more in
// bf16 (AMD EPYC with AVX-512).
//
// libtorch has no such product on CPUs. Its oneDNN makes a transposed copy of `a` on one thread first, MKL is
// slower on AMD cores, and for 16-bit factors both give 16-bit results.
#pragma once

#include <ATen/Tensor.h>

namespace cairn {

// True if this CPU multiplies tiles of such elements with oneDNN's kernel (brgemm), which libtorch exports.
bool HasTiles(at::ScalarType type);

// a [n, m] and b [n, k] of one type that HasTiles, c [m, k] fp32 with dense rows. Products of 16-bit factors
// are exact and summed in fp32. The result does not depend on the number of threads.
void AddTransposedProduct(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b);

}  // namespace cairn
