// Initial weights, independent of the topology: every element is a function of the seed, the parameter's name
// and its place in the whole tensor, so each rank makes its slice by itself.
//
// As GPT-2 and Megatron: normal(0, std), those that write to the residual stream divided by sqrt(2 * layers);
// norms' weights one, biases zero; padding rows of the vocabulary zero.
#pragma once

#include <functional>

#include "runtime/config/train_config.h"
#include "runtime/model/parameters/flat_parameters.h"

namespace cairn {

// Gives each parameter's initial slice in fp32 (its shape in memory, flattened) to `sink`, in the buffer's
// order.
void InitialValues(const TrainConfig& config, const FlatParameters& parameters,
                   const std::function<void(const LocalParameter&, const at::Tensor& values)>& sink);

// Standard normal number `index` of the stream `seed`.
float NormalAt(uint64_t seed, uint64_t index);

}  // namespace cairn
