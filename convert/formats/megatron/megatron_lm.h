// Checkpoints of Megatron-LM: mp_rank_* directories of all versions, and Megatron-Core's torch_dist.
//
// GPTs with fused QKV of checkpoint versions 0 to 3, grouped queries, gated MLPs, padded vocabularies, and
// pipelines with virtual stages.
#pragma once

#include "convert/foreign/open_options.h"

namespace cairn {

inline constexpr std::string_view kMegatronStep = "iter_";       // before an iteration's number
inline constexpr std::string_view kMegatronRelease = "release";  // weights from outside a training
// Beside the iterations: the number of the newest, or "release".
inline constexpr std::string_view kMegatronTracker = "latest_checkpointed_iteration.txt";
std::string IterationName(int64_t iteration);  // "iter_0000100"

// `path` is an iter_* directory, or one with latest_checkpointed_iteration.txt.
bool MatchesMegatronLm(FileSystem& fs, const std::string& path);
// If `path` is a run whose tracker names an iteration that cairn.megatron saved: that iteration, which holds
// a step of Cairn. Otherwise `path`.
std::string IterationSavedByCairn(FileSystem& fs, const std::string& path);
Result<std::unique_ptr<ForeignSource>> OpenMegatronLm(FileSystem& fs, const std::string& path,
                                                      ReaderOptions& options);

// Checks that Megatron-Core's common.pt, if it is among `names` of files in `directory`, has the
// metadata.json without which Megatron does not look at it.
Status CheckMegatronFiles(FileSystem& fs, const std::string& directory,
                          const std::vector<std::string>& names);

}  // namespace cairn
