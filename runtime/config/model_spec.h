// The parameters of a GPT as the checkpoint library names and cuts them.
//
// A Linear's weight is [out, in]. The order is that of the flat buffer (ckpt/model/placement.h); query, key
// and value follow each other, so that they are one fused matrix in memory.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "ckpt/model/tensor.h"
#include "runtime/config/train_config.h"

namespace cairn {

std::vector<ParameterSpec> GptSpecs(const TrainConfig& config);

// What a checkpoint's manifest says of the model (ckpt/FORMAT.md, "model").
nlohmann::json ModelFacts(const TrainConfig& config);

// Parameters of the model, the vocabulary unpadded, tied weights counted once.
uint64_t CountParameters(const std::vector<ParameterSpec>& specs);

}  // namespace cairn
