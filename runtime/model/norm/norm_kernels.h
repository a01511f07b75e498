// Norms of tensors: on a GPU by the kernels of libcairn_norm.so (cuda/norm_kernels.cu), one pass over memory.
// On a CPU, without that module, and for other types than fp32, bf16 and fp16, by libtorch's operations. On a
// CPU our own kernels would save 1 to 2 % of a step (12 layers of width 512).
#pragma once

#include <ATen/Tensor.h>

#include "runtime/model/autograd/dropout.h"

namespace cairn {

struct NormSettings {
  at::Tensor weight;  // [h], or undefined
  at::Tensor bias;    // [h], or undefined; not without a weight
  double epsilon;
  bool centres;  // LayerNorm; otherwise RMSNorm
};

// The outputs of a norm over [..., h].
struct Normed {
  at::Tensor y;     // the input of the norm: x, or residual + dropout(x)
  at::Tensor n;     // the result
  at::Tensor mean;  // fp32, one a row; undefined: RMSNorm
  at::Tensor rstd;  // fp32, one a row
};

// Norms x, or residual + dropout(x) if there is a residual. Both [..., h], of one type.
Normed NormForwardOf(const at::Tensor& x, const at::Tensor& residual, const KeepMask& mask,
                     const NormSettings& settings);

struct NormGrads {
  at::Tensor dy;       // of the residual
  at::Tensor dx;       // dy after dropout's mask; dy itself without one
  at::Tensor weights;  // fp32 [1 or 2, h]: of the weight, and of the bias; undefined without a weight
};

// `dn`: of the result. `dy`: what y's other uses give, or undefined. The sums over rows are taken in an order
// that depends only on the shape.
NormGrads NormBackwardOf(const at::Tensor& dn, const at::Tensor& dy, const Normed& normed,
                         const KeepMask& mask, const NormSettings& settings);

// The same by libtorch's operations.
Normed NormForwardByOperations(const at::Tensor& x, const at::Tensor& residual, const KeepMask& mask,
                               const NormSettings& settings);
NormGrads NormBackwardByOperations(const at::Tensor& dn, const at::Tensor& dy, const Normed& normed,
                                   const KeepMask& mask, const NormSettings& settings);

}  // namespace cairn
