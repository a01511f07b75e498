// Distributed checkpoints of Megatron-Core ("torch_dist"): iter_*/ with .metadata, __R_0.distcp, common.pt
// and metadata.json, from which a training of any TP and PP continues.
//
// Names are Transformer Engine's whichever layers the model has; layers are stacked along a first dimension,
// a chunk each; halves of a gated MLP are cut one by one; the tied head is omitted. A tensor that data
// parallel ranks share goes to the rank with the least so far, as --ckpt-fully-parallel-save spreads it.
// ZeRO 0 gives the state of the optimizer that is not distributed, ZeRO 1 that of the distributed one in its
// form "fully_reshardable". Source: megatron-core 0.16.1, dist_checkpointing/, optimizer/, transformer/; the
// training's own entries after Megatron-LM, training/checkpointing.py.
#pragma once

#include "convert/foreign/write_options.h"

namespace cairn {

Result<TargetFiles> PlanTorchDist(const CheckpointSource& source, const TargetOptions& options);

}  // namespace cairn
