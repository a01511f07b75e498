// Normalisation over the last dimension: LayerNorm, or RMSNorm, which neither centres nor has a bias as a
// rule: x / sqrt(mean(x^2) + epsilon) * weight.
//
// Statistics and the gradients of weights are fp32.
#pragma once

#include <utility>

#include "runtime/comm/process_group.h"
#include "runtime/config/model_spec.h"
#include "runtime/model/autograd/dropout.h"
#include "runtime/model/norm/norm_kernels.h"
#include "runtime/model/parameters/parameter.h"

namespace cairn {

class Norm {
 public:
  // Weight and bias: [h], or undefined; no bias without a weight. `shared_with`: ranks that norm other
  // activations by the same weights, so their gradients are added up.
  Norm(Normalization kind, Parameter weight, Parameter bias, double epsilon, ProcessGroup shared_with = {})
      : kind_(kind),
        weight_(std::move(weight)),
        bias_(std::move(bias)),
        epsilon_(epsilon),
        shared_with_(std::move(shared_with)) {}

  at::Tensor forward(const at::Tensor& x) const;

  // y = residual + block, of which the mask drops some; and its norm.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& residual, const at::Tensor& block,
                                            const KeepMask& mask) const;

 private:
  NormSettings Settings() const;
  // Gradients of y and of the block; adds those of the weights.
  NormGrads Backward(const at::Tensor& dnormed, const at::Tensor& dy, const Normed& forward,
                     const KeepMask& mask) const;

  Normalization kind_;
  Parameter weight_;
  Parameter bias_;
  double epsilon_;
  ProcessGroup shared_with_;
};

}  // namespace cairn
