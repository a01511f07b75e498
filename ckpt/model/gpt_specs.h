// The parameters of a GPT with learned positions, biases and layer norms, as `cairn train` trains it.
//
// The order is that of the flat buffer (placement.h); query, key and value follow each other, weights before
// biases, so that they are one fused matrix in memory.
#pragma once

#include <vector>

#include "ckpt/model/canonical_modules.h"

namespace cairn {

// `tied`: the output layer is the embedding. `vocab_multiple`: in memory the vocabulary is padded to a
// multiple of this times TP; 0: it is not.
std::vector<ParameterSpec> GptSpecs(const ModelSizes& sizes, bool tied, uint64_t vocab_multiple);

}  // namespace cairn
