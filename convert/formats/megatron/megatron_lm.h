// Checkpoints of Megatron-LM: mp_rank_* directories of all versions, and Megatron-Core's torch_dist.
//
// GPTs with fused QKV of checkpoint versions 0 to 3, grouped queries, gated MLPs, padded vocabularies, and
// pipelines with virtual stages.
#pragma once

#include "convert/foreign/open_options.h"
#include "convert/foreign/write_options.h"

namespace cairn {

inline constexpr std::string_view kMegatronStep = "iter_";       // before an iteration's number
inline constexpr std::string_view kMegatronRelease = "release";  // weights from outside a training
// Beside the iterations: the number of the newest, or "release".
inline constexpr std::string_view kMegatronTracker = "latest_checkpointed_iteration.txt";
std::string IterationName(int64_t iteration);  // "iter_0000100"

// `path` is an iter_* directory, or one with such and latest_checkpointed_iteration.txt, which names one.
bool MatchesMegatronLm(FileSystem& fs, const std::string& path);
// The directory of the iteration that the tracker in `path` names; `path` itself if the tracker is missing or
// empty. Errors: Corrupt, NotFound for a tracker that names none.
Result<std::string> IterationOf(FileSystem& fs, const std::string& path);
Result<std::unique_ptr<ForeignSource>> OpenMegatronLm(FileSystem& fs, const std::string& path,
                                                      ReaderOptions& options);

// Checkpoints of Megatron-LM in its "torch" format: iter_*/mp_rank_TT[_PPP]/model_optim_rng.pt of
// Megatron-Core's GPT, with the optimizer's state: ZeRO 0 that of the optimizer that is not distributed, ZeRO
// 1 distrib_optim.pt of the distributed one; checkpoint version 3.
//
// Masters and moments are listed in the order of the model's own parameters, those with weight decay first,
// as Megatron-Core 0.16 groups them. Source: megatron-core 0.16.1, optimizer/optimizer.py and __init__.py,
// models/gpt; Megatron-LM, training/checkpointing.py.
Result<TargetFiles> PlanMegatron(const CheckpointSource& source, const TargetOptions& options);

// Distributed checkpoints of Megatron-Core ("torch_dist"): iter_*/ with .metadata, __R_0.distcp, common.pt
// and metadata.json, from which a training of any TP and PP continues.
//
// Names are Transformer Engine's whichever layers the model has; layers are stacked along a first dimension,
// a chunk each; halves of a gated MLP are cut one by one; the tied head is omitted. A tensor that data
// parallel ranks share goes to the rank with the least so far, as --ckpt-fully-parallel-save spreads it.
// ZeRO 0 gives the state of the optimizer that is not distributed, ZeRO 1 that of the distributed one in its
// form "fully_reshardable". Source: megatron-core 0.16.1, dist_checkpointing/, optimizer/, transformer/; the
// training's own entries after Megatron-LM, training/checkpointing.py.
Result<TargetFiles> PlanTorchDist(const CheckpointSource& source, const TargetOptions& options);

}  // namespace cairn
