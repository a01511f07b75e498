#include "convert/families/foreign_model.h"

#include <unordered_map>

#include "convert/families/expand.h"
#include "convert/families/families.h"
#include "convert/families/hugging_face_config.h"

namespace cairn {
namespace {

using nlohmann::json;

std::string Dump(const json& value) { return value.dump(2) + "\n"; }

// That of the files the model was read from, or what the configuration implies.
json GenerationConfig(const json& model, const json& config) {
  const json kept = KeptOfHuggingFace(model, "generation_config");
  if (kept.is_object()) return kept;
  json generation = {{"_from_model_config", true}};
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (config.contains(token) && !config[token].is_null()) generation[token] = config[token];
  return generation;
}

Status DoesNotFit(const ForeignTensor& tensor, const ForeignPart& part, const ParameterSpec& spec) {
  return Corrupt("tensor {} has shape {}; in {} of shape {} it would be {}", spec.name, ToString(spec.shape),
                 tensor.name, ToString(tensor.shape), ToString(part.box));
}

}  // namespace

Result<ForeignModel> HuggingFaceModel(const json& model, Dtype dtype) {
  const json name = model.value("architecture", json());
  const Architecture* architecture = FindArchitecture(name.is_string() ? name.get<std::string>() : "");
  if (!name.is_string())
    return NotSupported(
        "nothing in the source says which family of models this is, and a Hugging Face release needs one; "
        "--config FILE names the config.json of a transformers model; --format safetensors keeps the "
        "tensors under their own names");
  if (architecture == nullptr)
    return NotSupported(
        "architecture {} has no Hugging Face form here; --format safetensors keeps canonical names",
        name.dump());
  const auto in_manifest = [](const Status& status) { return status.WithContext("the manifest's model"); };
  Result<ExpandedModel> expanded = Expand(*architecture, model);
  if (!expanded.ok()) return in_manifest(expanded.status());
  const Result<json> config = ConfigOfModel(*architecture, model, dtype);
  if (!config.ok()) return in_manifest(config.status());
  CAIRN_RETURN_IF_ERROR(CheckConfigFunction(*architecture, model, *config));
  return ForeignModel{
      std::move(expanded->tensors),
      {{"config.json", Dump(*config)}, {"generation_config.json", Dump(GenerationConfig(model, *config))}}};
}

ForeignModel CanonicalModel(const std::vector<ParameterSpec>& parameters) {
  ForeignModel model;
  for (const ParameterSpec& spec : parameters)
    model.tensors.push_back(
        {spec.name, spec.shape, {{{Box::Whole(spec.shape), Box::Whole(spec.shape)}, spec.name}}});
  return model;
}

Status CheckAgainst(const ForeignModel& model, const std::vector<ParameterSpec>& parameters) {
  struct Use {
    const ParameterSpec* spec;
    uint64_t elements = 0;  // taken so far
  };
  std::unordered_map<std::string_view, Use> uses;
  for (const ParameterSpec& spec : parameters) uses.emplace(spec.name, Use{&spec});
  for (const ForeignTensor& tensor : model.tensors) {
    for (const ForeignPart& part : tensor.parts) {
      const auto found = uses.find(part.parameter);
      if (found == uses.end())
        return Corrupt("tensor {} needs {}, which the checkpoint does not have", tensor.name, part.parameter);
      const ParameterSpec& spec = *found->second.spec;
      if (!part.Fits(spec.shape, tensor.shape)) return DoesNotFit(tensor, part, spec);
      found->second.elements += part.box.Volume();
    }
  }
  for (const ParameterSpec& spec : parameters) {
    const uint64_t elements = uses.at(spec.name).elements, volume = spec.shape.Volume();
    if (elements == 0 && volume > 0) return Corrupt("tensor {} has no place in the target format", spec.name);
    if (elements != volume)
      return Corrupt("tensor {} has shape {}, the manifest's model has {} elements of it", spec.name,
                     ToString(spec.shape), elements);
  }
  return OkStatus();
}

}  // namespace cairn
