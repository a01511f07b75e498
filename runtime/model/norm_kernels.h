// Norms of tensors by the kernels of norm_core.h: on a CPU row by row on its threads; on a GPU by
// libcairn_norm.so (cuda/norm_kernels.cu). If that is missing, and for other types than fp32, bf16 and
// fp16, by libtorch's operations, several passes over memory.
#pragma once

#include <ATen/Tensor.h>

#include "runtime/model/dropout.h"

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
// that depends on the shape alone.
NormGrads NormBackwardOf(const at::Tensor& dn, const at::Tensor& dy, const Normed& normed,
                         const KeepMask& mask, const NormSettings& settings);

// For tests: the same by libtorch's operations.
Normed NormForwardByOperations(const at::Tensor& x, const at::Tensor& residual, const KeepMask& mask,
                               const NormSettings& settings);
NormGrads NormBackwardByOperations(const at::Tensor& dn, const at::Tensor& dy, const Normed& normed,
                                   const KeepMask& mask, const NormSettings& settings);

}  // namespace cairn
