#include "ckpt/families/fitting_family.h"

#include <algorithm>
#include <vector>

#include "ckpt/families/expand.h"
#include "ckpt/families/families.h"
#include "ckpt/families/hugging_face_config.h"

namespace cairn {
namespace {

// A family may derive the width of its MLP from hidden_size (BLOOM); that is not a field of the function.
bool Computes(const Family& family, const Model& model) {
  const Result<Model> held = HeldBy(family, model);
  const Result<ModelShape> shape = ReadShape(model);
  return held.ok() && shape.ok() && ReadShape(*held)->ffn == shape->ffn &&
         SameFunction(model, *held, family.name).ok();
}

}  // namespace

std::string FittingFamily(Model model, std::span<const DecoderModules> possible) {
  std::vector<const Family*> families;
  for (const Family& family : KnownFamilies()) families.push_back(&family);
  std::ranges::stable_partition(families, [](const Family* family) { return !family->rare; });
  std::ranges::stable_partition(families,
                                [&](const Family* family) { return model.architecture == family->name; });
  std::string nearest;
  for (const Family* family : families) {
    model.architecture = family->name;
    const Result<DecoderModules> modules = ModulesOf(*family, model);
    if (!modules.ok() || std::ranges::find(possible, *modules) == possible.end()) continue;
    if (Computes(*family, model)) return family->name;
    if (nearest.empty()) nearest = family->name;
  }
  return nearest;
}

}  // namespace cairn
