// The functions between the matrices of an MLP.
#pragma once

#include <ATen/Tensor.h>

#include "runtime/config/model_spec.h"

namespace cairn {

at::Tensor Activate(Activation activation, const at::Tensor& x);

// [..., 2f] -> [..., f]: the first half, activated, times the second. Only the input is kept for backward.
at::Tensor ActivateGated(Activation activation, const at::Tensor& gate_and_up);

}  // namespace cairn
