// Dropout of a block's output, before it is added to the residual.
#pragma once

#include <ATen/Tensor.h>

#include "runtime/model/autograd/random_streams.h"

namespace cairn {

// Which elements stay, and what they are multiplied by.
struct KeepMask {
  at::Tensor keep;   // bool, in the shape of the activations; undefined: all of them
  double scale = 1;  // 1 / (1 - p)
};

// Draws for `x` where `training`. `own`: the streams of a rank that holds other rows than the rest; null
// where all hold x alike.
KeepMask DrawKeepMask(const at::Tensor& x, double p, bool training, RandomStreams* own);

// x where `training` is false or p is 0.
at::Tensor Dropout(const at::Tensor& x, double p, bool training, RandomStreams* own = nullptr);

}  // namespace cairn
