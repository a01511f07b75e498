// Settings of a family's config.json that follow from others, or that say in another way what a field of the
// manifest's `model` says: windows, dense layers, sizes, rotary position embeddings. The functions here
// translate in both directions.
//
// transformers spells rotary embeddings in two ways. Before 5: rope_theta, rope_scaling and
// partial_rotary_factor (GPT-NeoX: rotary_emb_base, rotary_pct) at the top. From 5 on: one object
// rope_parameters with rope_theta, rope_type, partial_rotary_factor and the scaling's own fields. Files are
// written with both: either version computes the same.
#pragma once

#include "ckpt/families/family.h"

namespace cairn {

// Sets sizes that may be omitted and follow from others.
void DeriveSizes(const Family& family, Model& model);

// Sets `dense_layers`, the layers that are not mixtures: families state them by a list and a step, or as the
// first ones, or list the mixtures. Errors: InvalidArgument naming the key.
Status ReadDenseLayers(Model& model);

// Sets the layers that see the window, for families that state it by a switch, a number or a list that is
// repeated; and those that do not rotate.
void ReadWindow(Model& model);
void ReadLayersWithRope(Model& model);
// Sets the lists by which a family states what other fields say.
void FillLists(const Family& family, Model& model);

// The inverse of these, for a model that was not read from a config.json. `function` is FunctionOf().
Model WithSpellings(const Family& family, Model model, const Model& function);

// Sets those of rotary_base, rotary_percent and rope_scaling that the file states, or a writer of `rotated`
// would. Errors: NotSupported if they differ by layer, or the family has no such part of a head.
Status ReadRope(const nlohmann::json& config, Model& model);
Status TakeRope(const Model& rotated, Model& model);

// Writes both spellings of the model's fields, rope_theta and partial_rotary_factor also under the keys that
// `also` has for them; with `keep`, keys that the file already has stay.
void WriteRope(const Model& model, const std::map<std::string, std::string>& also, bool keep,
               nlohmann::json& config);

}  // namespace cairn
