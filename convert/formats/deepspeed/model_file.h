// A file of model states: what each model parallel rank records about the training and its parameters.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "convert/formats/deepspeed/deepspeed_files.h"
#include "convert/torch/torch_file.h"

namespace cairn {

struct NamedShape {
  std::string name;
  std::optional<Dims> shape;  // nothing: the file has no shape for it
};
// The entries of a dict {name: shape}; none if `shapes` is null.
std::vector<NamedShape> ShapesIn(const PyValue* shapes);
// `param_shapes`: the trained parameters of each group of the optimizer.
std::vector<std::vector<NamedShape>> ParamShapesOf(const PyValue& root);

// Names of parameters whose elements are elsewhere, so that the module may have empty tensors in their place.
std::set<std::string> PlaceholdersOf(const PyValue& root);
std::set<std::string> BufferNamesOf(const PyValue& root);
// Whether its ds_config has the setting, and it is true.
bool IsConfigured(const PyValue& root, const char* setting);
// The size of the vocabulary without padding; 0 if the file does not have it.
uint64_t OriginalVocabulary(const PyValue& root);

// Puts the loss scale of an optimizer's state into a manifest's; `scaler`, which may be null, has cur_scale.
void PutLossScale(const PyValue& optimizer, const PyValue* scaler, nlohmann::json& state);

}  // namespace cairn
