// Multi-head latent attention in Megatron-Core's arguments, in both directions.
//
// It always rotates neighbours, whatever rotary_interleaved says, and has no groups of query heads.
//
// Source: megatron-core 0.16.1, transformer/multi_latent_attention.py, MLATransformerConfig.
#pragma once

#include "ckpt/model/model.h"

namespace cairn {

// True for the arguments of a model with latent attention.
bool IsLatent(const nlohmann::json& args);

// Sets its sizes and the fields of its function, which replace those of other attention. Settings that no
// field expresses go into "other".
void ReadLatentAttention(const nlohmann::json& args, Model& model);

// The inverse: adds nothing if `shape` has none. `function` is of FunctionOf().
void AddLatentSizes(const ModelShape& shape, nlohmann::json& args);
void AddLatentArguments(const Model& function, nlohmann::json& args);

}  // namespace cairn
