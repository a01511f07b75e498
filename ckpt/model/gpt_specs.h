// The parameters of a decoder as `cairn train` trains it.
//
// The order is that of the flat buffer (placement.h). Query, key and value follow each other, weights before
// biases, and so do gate and up, so that each is one fused matrix in memory.
#pragma once

#include <vector>

#include "ckpt/model/canonical_modules.h"

namespace cairn {

// Which of the parameters that a family may have are there. The defaults are GPT-2's.
struct GptTensors {
  bool positions = true;         // embedding.position
  bool position_offset = false;  // embedding.position_offset
  bool embedding_norm = false;
  bool norm_weight = true;  // of every norm
  bool norm_bias = true;
  bool query_key_value_bias = true;
  bool query_key_norm = false;
  bool attention_output_bias = true;
  bool gate = false;     // mlp.gate beside mlp.up
  bool mlp_bias = true;  // of gate, up and down
  bool operator==(const GptTensors&) const = default;
};

// `tied`: the output layer is the embedding. `vocab_multiple`: in memory the vocabulary is padded to a
// multiple of this times TP; 0: it is not.
std::vector<ParameterSpec> GptSpecs(const ModelSizes& sizes, bool tied, uint64_t vocab_multiple,
                                    const GptTensors& has = {});

}  // namespace cairn
