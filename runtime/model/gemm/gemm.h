// The three matrix products of a linear layer, each by the fastest route that this device has for its dtype.
//
// On CPUs fp32 goes to oneDNN: libtorch itself takes MKL, which on AMD cores does not use AVX-512 (measured
// on a Zen 5: 200 against 440 GFLOP/s on 2 cores). fp16 is computed in fp32, as CPUs rarely multiply it,
// and so is bf16 if oneDNN does not multiply it on this CPU.
#pragma once

#include <ATen/Tensor.h>

namespace cairn {

// True if oneDNN multiplies bf16 on this CPU (AVX-512). Otherwise libtorch uses its own loops, at a
// quarter to a hundredth of the speed of fp32.
bool HasBf16Products();

// True for 16-bit factors that lie on a CPU and are multiplied faster in fp32.
bool ComputeInFp32(const at::Tensor& x);

// x [n, in] times weight [out, in] transposed, plus bias [out] if defined: [n, out].
at::Tensor LinearForward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// dy [n, out] times weight [out, in]: [n, in].
at::Tensor LinearInputGrad(const at::Tensor& dy, const at::Tensor& weight);

// grad [out, in] += dy [n, out] transposed times x [n, in]. `grad` is fp32, and so is the product: 16-bit
// factors are multiplied exactly and summed in fp32.
void AddLinearWeightGrad(const at::Tensor& grad, const at::Tensor& dy, const at::Tensor& x);

// grad [out] += the sum of dy's rows, summed in fp32.
void AddLinearBiasGrad(const at::Tensor& grad, const at::Tensor& dy);

}  // namespace cairn
