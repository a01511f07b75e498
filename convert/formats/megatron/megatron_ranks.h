// The directories of ranks in an iteration of Megatron-LM's "torch" format: mp_rank_TT[_PPP][_EEE].
//
// Source: Megatron-LM, training/checkpointing.py, get_checkpoint_name().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/model/topology.h"

namespace cairn {

struct MegatronRank {
  int tp = 0;
  int pp = 0;
  int ep = 0;
  std::string file;  // relative to the iteration's directory
};

// "mp_rank_01_003_002"; nothing for other names. A name lacks the number of a pipeline or of EP if there is
// no such; the second number is taken for that of the pipeline.
std::optional<MegatronRank> ParseMegatronRank(const std::string& name);

bool HoldsMegatronRanks(FileSystem& fs, const std::string& directory);

// A stage has a directory of each TP rank, and of each EP rank; if experts are cut (ETP is TP), of both
// together. Errors: NotFound naming one that is missing.
Status CheckComplete(const std::vector<MegatronRank>& ranks, const Topology& topology);

}  // namespace cairn
