// Checkpoints of Megatron-LM in its "torch" format: iter_*/mp_rank_TT[_PPP]/model_optim_rng.pt of
// Megatron-Core's GPT, with the optimizer's state: ZeRO 0 that of the optimizer that is not distributed, ZeRO
// 1 distrib_optim.pt of the distributed one; checkpoint version 3.
//
// Masters and moments are listed in the order of the model's own parameters, those with weight decay first,
// as Megatron-Core 0.16 groups them. Source: megatron-core 0.16.1, optimizer/optimizer.py and __init__.py,
// models/gpt; Megatron-LM, training/checkpointing.py.
#pragma once

#include "convert/foreign/write_options.h"

namespace cairn {

Result<TargetFiles> PlanMegatron(const CheckpointSource& source, const TargetOptions& options);

}  // namespace cairn
