// Layer normalisation over the last dimension.
#pragma once

#include "runtime/model/autograd.h"

namespace cairn {

class LayerNorm {
 public:
  LayerNorm(Parameter weight, Parameter bias, double epsilon)
      : weight_(std::move(weight)), bias_(std::move(bias)), epsilon_(epsilon) {}

  at::Tensor forward(const at::Tensor& x) const;

 private:
  Parameter weight_;  // [h]
  Parameter bias_;    // [h]
  double epsilon_;
};

}  // namespace cairn
