// The parameters follow from the modules that the family's table gives the model, or, if no table knows it,
// from the modules that Megatron's arguments for the model ask for.

#include "convert/formats/whole_check.h"

#include <algorithm>
#include <set>

#include "ckpt/base/short_list.h"
#include "ckpt/families/expand.h"
#include "ckpt/families/families.h"
#include "ckpt/model/canonical_modules.h"
#include "convert/foreign/account.h"
#include "convert/formats/megatron_model/megatron_layout.h"
#include "convert/formats/training/part_of_state.h"

namespace cairn {
namespace {

using nlohmann::json;

Result<ModelShape> ShapeWithModules(const TensorTable& table, const Model& model) {
  if (const Family* family = FindFamily(model.architecture.value_or(""))) {
    CAIRN_ASSIGN_OR_RETURN(ModelShape shape, ReadShape(model));
    CAIRN_ASSIGN_OR_RETURN(shape.modules, ModulesOf(*family, model));
    return shape;
  }
  TrainingTensors tensors;
  for (ParameterSpec& spec : table.Parameters()) tensors.parameters.push_back({.spec = std::move(spec)});
  CAIRN_ASSIGN_OR_RETURN(MegatronShape shape, MegatronShapeOf(model, tensors));
  CAIRN_ASSIGN_OR_RETURN(shape.modules, ModulesOfProgram(model, shape));
  return shape;
}

// Megatron's arguments do not say whether the embedding has a norm, nor how many positions a model has that
// rotates its queries and keys.
bool MayLack(const std::string& parameter, const Model& model) {
  return parameter.starts_with("embedding.norm.") ||
         (parameter.starts_with("embedding.position") && IntOf(model.max_position_embeddings) <= 0);
}

bool WasAllowed(const std::string& name, const Manifest& manifest) {
  const auto& history = manifest.history;
  return std::ranges::find(history, json(AllowedLine(name))) != history.end();
}

}  // namespace

std::vector<std::string> MissingParameters(const TensorTable& table, const Manifest& manifest) {
  const Model& model = manifest.model;
  const Result<ModelShape> shape = ShapeWithModules(table, model);
  if (!shape.ok()) return {};
  std::set<std::string_view> held;
  for (const TensorEntry& tensor : table.tensors)
    if (tensor.role == Role::kWeight || tensor.role == Role::kMaster) held.insert(tensor.spec.name);
  std::vector<std::string> missing;
  if (std::cmp_greater(shape->AllLayers(), held.size()))
    return {fmt::format("{} layers, as there are {} tensors", shape->AllLayers(), held.size())};
  for (const ParameterSpec& spec : GptSpecs(*shape))
    if (!held.contains(spec.name) && !MayLack(spec.name, model) && !WasAllowed(spec.name, manifest))
      missing.push_back(spec.name);
  return missing;
}

Status CheckParameters(const CheckpointSource& source, ReaderOptions& options) {
  std::vector<std::string> missing = MissingParameters(source.catalog(), source.manifest());
  std::erase_if(missing, [&](const std::string& name) { return IsAllowed(options, name); });
  if (!missing.empty())
    return NotFound("{}: its model has parameters that are missing: {}; --allow GLOB takes it without them",
                    source.name(), ShortList(missing));
  return OkStatus();
}

Status CheckWhole(const CheckpointSource& source, ReaderOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckParameters(source, options));
  if (std::string part = FirstPartOfState(source.catalog()); !part.empty()) {
    constexpr std::string_view kWithout = "--allow optimizer takes the weights without the optimizer's state";
    if (MayBeOfLowRank(source.catalog()))
      return NotSupported("{}: {}; it may be of low rank, or one rank's part; {}", source.name(), part,
                          kWithout);
    return Corrupt("{}: {}; {}", source.name(), part, kWithout);
  }
  const json account = AccountOf(source);
  if (!account.is_object() || !account.contains(kOptimizerLeft) || IsAllowed(options, "optimizer"))
    return OkStatus();
  return NotSupported(
      "{}: the optimizer has a form that is not read: {}; --allow optimizer takes the weights without it",
      source.name(), ShortList(account[kOptimizerLeft].get<std::vector<std::string>>()));
}

}  // namespace cairn
