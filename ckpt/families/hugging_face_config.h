// config.json of a Hugging Face directory, to and from the manifest's `model`.
//
// A model that was read keeps its own config.json (`model.hugging_face.config`), and every field comes back;
// only fields that changed since, and those that versions spell differently, are written again.
#pragma once

#include "ckpt/base/dtype.h"
#include "ckpt/base/status.h"
#include "ckpt/families/family.h"

namespace cairn {

// The fields of the architecture's table that `config` states or implies. All other keys go into `other`
// (ckpt/model/model.h), as config.KEY, except for null, false and keys that are known to be
// harmless. Errors: InvalidArgument naming a missing or ill-typed key; NotSupported naming an unknown one.
Result<Model> ModelOfConfig(const Family& family, const nlohmann::json& config);

// The sizes of a model of any family, with or without a table, for planning; of a model of several parts
// those of its decoder (text_config). `positions` stays 0 unless they are learned; `seq` is the longest
// sequence of the model. Errors: InvalidArgument naming a missing or absurd size; NotSupported naming the key
// of a mixture of experts in a family without a table, or of another model that ModelShape cannot describe.
Result<ModelShape> ShapeOfConfig(const nlohmann::json& config);

// `dtype` is that of the weights. Errors: those of ModelOfConfig for the kept file; InvalidArgument naming a
// field that the model lacks.
Result<nlohmann::json> ConfigOfModel(const Family& family, const Model& model, Dtype dtype);

// The model that a reader of such a file would find, if the model's own file is not kept. Errors: those of
// ModelOfConfig.
Result<Model> HeldBy(const Family& family, const Model& model);

// The value under `key` that a model keeps of the files that it was read from
// ("config", "generation_config", "stored_dtype"); null if it has none.
nlohmann::json KeptOfHuggingFace(const Model& model, const char* key);

// A model with the fields that an earlier version did not read from its own config.json.
Model CompleteModel(const Model& model);

// Checks that a `config` of the architecture computes the model's function. Errors: NotSupported naming the
// difference.
Status CheckConfigFunction(const Family& family, const Model& model, const nlohmann::json& config);

}  // namespace cairn
