// Mixtures of experts in Megatron-Core's arguments: their router, and the layers that are mixtures, in both
// directions. A mixture is a model with num_experts, one with latent attention has kv_lora_rank.
//
// Source: megatron-core 0.16.1, transformer/moe/moe_utils.py, router.py; models/gpt/gpt_layer_specs.py.
#pragma once

#include <string_view>

#include "ckpt/model/model.h"

namespace cairn {

// Sets the fields of the router's function and dense_layers, if `model` is a mixture. Settings that no
// field expresses go into "other".
void ReadRouter(const nlohmann::json& args, Model& model);

// The inverse. `function` is of FunctionOf(); `args` has the sizes.
void AddRouterArguments(const Model& function, nlohmann::json& args);

// True for an argument that changes the function of a mixture only; in a dense model it is harmless.
bool ChangesMixtures(std::string_view argument);

// The modules of `dense`, with experts instead of the MLP in the layers that are mixtures, and with latent
// attention instead of the other if the model has it; and those of its layers of multi-token prediction.
DecoderModules LayerByLayer(const DecoderModules& dense, const nlohmann::json& args, const Model& model);

}  // namespace cairn
