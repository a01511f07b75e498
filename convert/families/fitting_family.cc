#include "convert/families/fitting_family.h"

#include <algorithm>
#include <vector>

#include "ckpt/model/model_function.h"
#include "convert/families/expand.h"
#include "convert/families/families.h"
#include "convert/families/hugging_face_config.h"

namespace cairn {
namespace {

using nlohmann::json;

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

FittingFamily FindFittingFamily(const json& model, std::span<const DecoderModules> possible) {
  std::vector<const Architecture*> families;
  for (const Architecture& family : Architectures()) families.push_back(&family);
  const json named = model.value("architecture", json());
  std::ranges::stable_partition(families, [&](const Architecture* family) { return named == family->name; });
  FittingFamily nearest;
  json of_family = model;
  for (const Architecture* family : families) {
    of_family["architecture"] = family->name;
    const Result<DecoderModules> modules = ModulesOf(*family, of_family);
    if (!modules.ok() || std::ranges::find(possible, *modules) == possible.end()) continue;
    if (Computes(*family, of_family)) return {family, true};
    if (nearest.family == nullptr) nearest.family = family;
  }
  return nearest;
}

}  // namespace cairn
