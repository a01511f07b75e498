// Checkpoints of DeepSpeed: pipelines of Megatron-DeepSpeed in layer files, and any model under ZeRO-1, 2
// or 3.
//
// Megatron's modules become canonical parameters; a model of other names keeps them. 16-bit weights come with
// their fp32 masters; if only masters are stored (ZeRO-3), they are the weights.
#pragma once

#include "convert/foreign/open_options.h"
#include "convert/foreign/write_options.h"

namespace cairn {

Result<std::unique_ptr<ForeignSource>> OpenDeepSpeed(FileSystem& fs, const std::string& path,
                                                     ReaderOptions& options);

// Checkpoints of DeepSpeed and Megatron-DeepSpeed: global_step*/ with model states, a pipeline's layer files,
// and ZeRO shards of the optimizer; `latest` beside it.
//
// A GPT with ZeRO 1 is a pipeline of Megatron-DeepSpeed, whatever PP; with ZeRO 2 or 3 its modules are those
// of the language model. A model of unknown family keeps its names. ZeRO 0 is written as ZeRO 1: DeepSpeed
// itself stores a bf16 pipeline so. Source: deepspeed 0.19.8, runtime/engine.py, runtime/pipe/module.py.
Result<TargetFiles> PlanMegatronDeepSpeed(const CheckpointSource& source, const TargetOptions& options);

// DeepSpeed's universal checkpoints: one directory per parameter with its fp32 value and moments, whole over
// all ranks. The masters are the weights; no others are stored. `path` is such a directory. Open also takes
// one with a `latest_universal` file, if --from names the format. Source: deepspeed 0.16 to 0.19,
// checkpoint/ds_to_universal.py.
bool MatchesUniversal(FileSystem& fs, const std::string& path);
Result<std::unique_ptr<ForeignSource>> OpenUniversal(FileSystem& fs, const std::string& path,
                                                     ReaderOptions& options);

// The universal form of the same training, which a training of any topology and ZeRO stage loads;
// `latest_universal` beside it. Its fp32 values are masters,
// or weights. Names depend on the program: a pipeline's for ZeRO 0 and 1, the language model's for ZeRO 2
// and 3. Source: deepspeed 0.19.8, checkpoint/ds_to_universal.py, universal_checkpoint.py.
Result<TargetFiles> PlanUniversal(const CheckpointSource& source, const TargetOptions& options);

}  // namespace cairn
