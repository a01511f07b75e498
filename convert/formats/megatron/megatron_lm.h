// Checkpoints of Megatron-LM: mp_rank_* directories of all versions, and Megatron-Core's torch_dist.
//
// GPTs with fused QKV of checkpoint versions 0 to 3, grouped queries, gated MLPs, padded vocabularies, and
// pipelines with virtual stages.
#pragma once

#include "convert/foreign/format.h"

namespace cairn {

// `path` is an iter_* directory, or one with latest_checkpointed_iteration.txt.
bool MatchesMegatronLm(FileSystem& fs, const std::string& path);
// If `path` is a run whose tracker names an iteration that cairn.megatron saved: that iteration, which holds
// a step of Cairn. Otherwise `path`.
std::string IterationSavedByCairn(FileSystem& fs, const std::string& path);
Result<std::unique_ptr<ForeignSource>> OpenMegatronLm(FileSystem& fs, const std::string& path,
                                                      const OpenOptions& options);

}  // namespace cairn
