// Rotary position embeddings in configuration files, which transformers spells in two ways.
//
// Before 5: rope_theta, rope_scaling and partial_rotary_factor (GPT-NeoX: rotary_emb_base, rotary_pct) at the
// top. From 5 on: one object rope_parameters with rope_theta, rope_type, partial_rotary_factor and the
// scaling's own fields. Files are written with both: either version computes the same.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "ckpt/base/status.h"

namespace cairn {

// Adds those of rotary_base, rotary_percent and rope_scaling that the file states to a manifest's `model`.
// Errors: NotSupported if they differ by layer.
Status ReadRope(const nlohmann::json& config, nlohmann::json& model);

// Writes both spellings of the model's fields, rope_theta and partial_rotary_factor also under the keys that
// `also` has for them; with `keep`, keys that the file already has stay.
void WriteRope(const nlohmann::json& model, const std::map<std::string, std::string>& also, bool keep,
               nlohmann::json& config);

}  // namespace cairn
