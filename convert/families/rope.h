// Rotary position embeddings in configuration files, which transformers spells in two ways.
//
// Before 5: rope_theta, rope_scaling and partial_rotary_factor (GPT-NeoX: rotary_emb_base, rotary_pct) at the
// top. From 5 on: one object rope_parameters with rope_theta, rope_type, partial_rotary_factor and the
// scaling's own fields. Files are written with both, so that either version computes the same.
#pragma once

#include <nlohmann/json.hpp>

#include "ckpt/base/status.h"

namespace cairn {

// Adds rotary_base, rotary_percent and rope_scaling to a manifest's `model`, those that the file states.
// Errors: NotSupported if layers have different ones.
Status ReadRope(const nlohmann::json& config, nlohmann::json& model);

// Writes both spellings of what the model has; with `keep`, keys that the file has already stay.
void WriteRope(const nlohmann::json& model, bool keep, nlohmann::json& config);

}  // namespace cairn
