// A canonical model under the names that transformers has in memory: the inverse of a mapping by config.json
// (config_mapping.h). So a training continues from a step of Cairn, from Megatron, or on another topology.
#pragma once

#include <memory>

#include "ckpt/families/expand.h"
#include "convert/foreign/open_options.h"
#include "convert/formats/hugging_face/config_mapping.h"

namespace cairn {

// The parameters of `canonical` and their optimizer's states in the tensors of a training. A tensor that
// holds several parameters (gate and up) has a state if all of them have it; a number that each parameter has
// (its step) counts once, and the others are in `twins`. Pure. Errors: NotFound for a parameter that is
// missing; NotSupported naming a tensor that has no place, parameters of one tensor that have two types or
// are in two groups of the optimizer, or a state of another shape in a tensor that is not stored as it is.
Result<ConfigMapping> MapToMemory(const TensorTable& canonical, const Manifest& manifest,
                                  const Family& family);

// Errors: those of MapToMemory; InvalidArgument if the source does not state its model; NotSupported if no
// table knows its family; Corrupt if numbers that must be equal differ.
Result<std::unique_ptr<ForeignSource>> UnderTrainingNames(std::unique_ptr<CheckpointSource> source);

}  // namespace cairn
