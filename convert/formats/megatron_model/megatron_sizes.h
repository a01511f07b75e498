// Sizes of a Megatron model derived from its tensors, for checkpoints whose args lack them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "ckpt/base/box.h"
#include "ckpt/base/status.h"
#include "convert/torch/pickle_value.h"

namespace cairn {

// By layer and name without it ("mlp.dense_4h_to_h.weight"): the shape of a rank's slice.
using MegatronShapes = std::map<std::pair<int, std::string>, Dims>;

// Arguments by name, of `tp_size` ranks: num_layers, hidden_size, padded_vocab_size, max_position_embeddings,
// ffn_hidden_size, and, if the heads are known, num_key_value_heads. Errors: NotFound naming an argument
// that `args` lacks, that changes the function and that no tensor shows: the kind of positions of a model
// without position embeddings, the activation of a gated MLP.
Result<std::map<std::string, uint64_t>> SizesShown(const PyValue& args, const MegatronShapes& shapes,
                                                   int tp_size);

}  // namespace cairn
