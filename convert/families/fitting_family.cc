#include "convert/families/fitting_family.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "ckpt/model/gpt_specs.h"
#include "ckpt/model/model_function.h"
#include "convert/families/expand.h"
#include "convert/families/families.h"
#include "convert/families/hugging_face_config.h"

namespace cairn {
namespace {

using nlohmann::json;

std::set<std::string> NamesOf(const std::vector<ParameterSpec>& specs) {
  std::set<std::string> names;
  for (const ParameterSpec& spec : specs) names.insert(spec.name);
  return names;
}

// A layer is enough to see the names.
bool HasTensorsOf(const Architecture& family, const json& model, std::span<const GptTensors> has) {
  json one = model;
  for (const char* size : {"num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
                           "head_dim", "ffn_hidden_size", "vocab_size", "max_position_embeddings"})
    one[size] = 1;
  const Result<ExpandedModel> expanded = Expand(family, one);
  if (!expanded.ok()) return false;
  const std::set<std::string> of_family = NamesOf(expanded->parameters);
  ModelShape shape{.layers = 1, .hidden = 1, .heads = 1, .vocab = 1, .positions = 1};
  shape.tied = model.value("tied_embeddings", true);
  return std::ranges::any_of(has, [&](const GptTensors& tensors) {
    shape.has = tensors;
    return NamesOf(GptSpecs(shape)) == of_family;
  });
}

// A family may derive the width of its MLP from hidden_size (BLOOM); that is not a field of the function.
bool Computes(const Architecture& family, const json& model) {
  const Result<json> config = ConfigOfModel(family, model, Dtype::kF32);
  if (!config.ok()) return false;
  const Result<json> back = ModelOfConfig(family, *config);
  const Result<ModelShape> shape = ReadShape(model);
  return back.ok() && shape.ok() && ReadShape(*back)->ffn == shape->ffn &&
         SameFunction(model, *back, family.name).ok();
}

}  // namespace

FittingFamily FindFittingFamily(const json& model, std::span<const GptTensors> has) {
  std::vector<const Architecture*> families;
  for (const Architecture& family : Architectures()) families.push_back(&family);
  const json named = model.value("architecture", json());
  std::ranges::stable_partition(families, [&](const Architecture* family) { return named == family->name; });
  FittingFamily nearest;
  json of_family = model;
  for (const Architecture* family : families) {
    of_family["architecture"] = family->name;
    if (!HasTensorsOf(*family, of_family, has)) continue;
    if (Computes(*family, of_family)) return {family, true};
    if (nearest.family == nullptr) nearest.family = family;
  }
  return nearest;
}

}  // namespace cairn
