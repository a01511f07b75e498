// Checkpoints of DeepSpeed and Megatron-DeepSpeed: global_step*/ with model states, a pipeline's layer files,
// and ZeRO shards of the optimizer; `latest` beside it.
//
// A GPT with ZeRO 1 is a pipeline of Megatron-DeepSpeed, whatever PP; with ZeRO 2 or 3 its modules are those
// of the language model. A model of unknown family keeps its names. ZeRO 0 is written as ZeRO 1: DeepSpeed
// itself stores a bf16 pipeline so. Source: deepspeed 0.19.8, runtime/engine.py, runtime/pipe/module.py.
#pragma once

#include "convert/foreign/write_options.h"

namespace cairn {

Result<TargetFiles> PlanMegatronDeepSpeed(const CheckpointSource& source, const TargetOptions& options);

// DeepSpeed's universal form of the same training: a directory a parameter, whole over all ranks, that a
// training of any topology and ZeRO stage loads; `latest_universal` beside it. Its fp32 values are masters,
// or weights. Names depend on the program: a pipeline's for ZeRO 0 and 1, the language model's for ZeRO 2
// and 3. Source: deepspeed 0.19.8, checkpoint/ds_to_universal.py, universal_checkpoint.py.
Result<TargetFiles> PlanUniversal(const CheckpointSource& source, const TargetOptions& options);

}  // namespace cairn
