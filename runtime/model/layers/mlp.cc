#include "runtime/model/layers/mlp.h"

#include <ATen/ATen.h>

#include "runtime/model/layers/activation.h"

namespace cairn {

at::Tensor Mlp::forward(const at::Tensor& x) const {
  const at::Tensor inner = up_.forward(x);
  return down_.forward(gated_ ? ActivateGated(activation_, inner) : Activate(activation_, inner));
}

}  // namespace cairn
