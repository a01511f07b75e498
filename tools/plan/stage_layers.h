// How many layers each stage of a pipeline holds, and what a rank has of their parameters.
//
// All stages hold the same number, except that the first and the last may hold fewer, because they also have
// the embedding, and the output layer with the loss: RunSetup::first_layers and last_layers, 0 by default.
// sbatch.h has the flags of each program.
#pragma once

#include <algorithm>
#include <vector>

#include "ckpt/model/shape.h"
#include "tools/plan/run_setup.h"

namespace cairn {

// A stage with fewer layers than the others counts as a full one: a table's 205 B on 9 stages.
struct StageLayers {
  double first = 0;
  double middle = 0;  // of each stage between; for a pipeline of two, or even stages: as the first
  double last = 0;
  double Most() const { return std::max({first, middle, last}); }
};
StageLayers PlannedStages(const ModelShape& shape, const RunSetup& setup);

// Parameters that one rank holds of those counted.
struct RankParams {
  double dense = 0;    // replicated DP times
  double experts = 0;  // replicated RunSetup::ExpertReplicas() times
  double All() const { return dense + experts; }
};
RankParams ParamsOfRank(const ParameterCounts& counts, const RunSetup& setup);
// Those of the layers [first, first + layers), whose kinds may differ.
RankParams ParamsOfRank(const ModelShape& shape, double first, double layers, const RunSetup& setup);

// True if the layers divide evenly into the stages (and their chunks), as the program cuts them.
bool StagesAreWhole(const ModelShape& shape, const RunSetup& setup);

// Layers of the first and of the last stage.
struct StageEnds {
  int64_t first = 0;
  int64_t last = 0;
  bool operator==(const StageEnds&) const = default;
};

// The cuts with fewer layers in the first or last stage that setup.program supports, apart from the even one,
// for its pp and virtual stages: Megatron-LM's by --decoder-first-pipeline-num-layers and
// --account-for-embedding-in-pipeline-split and their likes, Megatron-DeepSpeed's by --pp-partition-method.
// `cairn train` has none: it cuts as evenly as possible.
std::vector<StageEnds> UnevenEnds(const ModelShape& shape, const RunSetup& setup);

}  // namespace cairn
