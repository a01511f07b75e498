// Activation checkpointing: keeps only the input of a piece of the model and computes the rest again in
// backward.
#pragma once

#include <ATen/Tensor.h>

#include <functional>
#include <vector>

#include "runtime/model/autograd/kept_activation.h"
#include "runtime/model/autograd/random_streams.h"

namespace cairn {

// block(x), of which only x is kept. In backward the block runs again with the random streams of the first
// time: dropout drops the same elements. `block` and `streams` must outlive backward.
at::Tensor Recompute(const std::function<at::Tensor(const at::Tensor&)>& block, const at::Tensor& x,
                     RandomStreams& streams, const Keeping& keeping = {});

// The same of several inputs.
using BlockOfMany = std::function<at::Tensor(const std::vector<at::Tensor>&)>;
at::Tensor Recompute(const BlockOfMany& block, const std::vector<at::Tensor>& inputs, RandomStreams& streams,
                     const Keeping& keeping = {});

}  // namespace cairn
