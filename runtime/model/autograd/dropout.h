// Dropout of a block's output, before it is added to the residual.
#pragma once

#include <ATen/Tensor.h>

#include "runtime/model/autograd/random_streams.h"

namespace cairn {

// Which elements are kept, and their factor.
struct KeepMask {
  at::Tensor keep;   // bool, in the shape of the activations; undefined: all of them
  double scale = 1;  // 1 / (1 - p)
};

// Draws for `x` if `training`. `own`: the streams of a rank that holds different rows; null if all hold the
// same x.
KeepMask DrawKeepMask(const at::Tensor& x, double p, bool training, RandomStreams* own);

// x where `training` is false or p is 0.
at::Tensor Dropout(const at::Tensor& x, double p, bool training, RandomStreams* own = nullptr);

}  // namespace cairn
