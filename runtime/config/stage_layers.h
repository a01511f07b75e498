// The layers of each pipeline stage, if the user gives more than the number of stages.
#pragma once

#include <vector>

#include "runtime/config/train_config.h"

namespace cairn {

// Layers of each stage (of each run of layers, if --num-virtual-stages-per-pipeline-rank gives a stage
// several; run c lies on stage c % PP) by --layers-per-stage, or as DeepSpeed cuts Megatron-DeepSpeed's
// pipeline by --pp-partition-method (deepspeed 0.19.8, runtime/pipe/module.py): "uniform" counts its
// elements, "parameters" their parameters, "type:REGEX" those whose class has such a name. Empty: as even as
// possible. Requires a model that is valid. Errors: InvalidArgument if a list does not fit the layers and
// stages, a method is not known, or a stage would have no layer.
Result<std::vector<int>> StageLayersOf(const TrainConfig& config);

// `weights` cut into `parts` so that the heaviest and the lightest part differ the least, as DeepSpeed's
// partition_balanced does: parts + 1 bounds.
std::vector<size_t> PartitionBalanced(const std::vector<double>& weights, size_t parts);

}  // namespace cairn
