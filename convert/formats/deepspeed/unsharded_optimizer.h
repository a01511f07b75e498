// The optimizer of a DeepSpeed training without ZeRO: a state dict of torch's own in the model states, with
// fp32 masters with it if the weights have 16 bits.
//
// Source: deepspeed 0.19 runtime/fp16/unfused_optimizer.py, fused_optimizer.py, runtime/engine.py. It numbers
// parameters and does not name them. With masters they are identified by value: each master rounds to its
// weight, and a group has its parameters in the order of the model. Without masters they are identified by
// shape.
#pragma once

#include "convert/formats/deepspeed/mixtures.h"
#include "convert/formats/deepspeed/rank_optimizers.h"

namespace cairn {

// Adds the states of model parallel rank `rank` to `ranks` and `facts`. Groups of a mixture of experts have
// only experts (`moe`), and other groups have none. Errors:
// NotSupported naming a state that has no place, or if shapes do not tell the parameters apart; Corrupt if a
// master rounds to no weight.
Status ReadUnsharded(RankSlices& ranks, size_t rank, const RankOptimizer& own, OptimizerFacts& facts);

}  // namespace cairn
