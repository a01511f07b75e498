#include "ckpt/families/foreign_model.h"

#include <algorithm>
#include <unordered_map>

#include "ckpt/families/expand.h"
#include "ckpt/families/families.h"
#include "ckpt/families/hugging_face_config.h"

namespace cairn {
namespace {

using nlohmann::json;

std::string Dump(const json& value) { return value.dump(2) + "\n"; }

// The one of the files that the model was read from, or the one that the configuration implies.
json GenerationConfig(const Model& model, const json& config) {
  const json kept = KeptOfHuggingFace(model, "generation_config");
  if (kept.is_object()) return kept;
  json generation = {{"_from_model_config", true}};
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (config.contains(token) && !config[token].is_null()) generation[token] = config[token];
  return generation;
}

// Sets all keys of types, also those of the parts of a multimodal model, but not of quantized weights.
void SetDtype(std::string_view name, json& config) {
  for (auto& [key, value] : config.items())
    if ((key == "dtype" || key == "torch_dtype") && value.is_string())
      value = name;
    else if (value.is_object() && key != "quantization_config")
      SetDtype(name, value);
}

// The model as it was read: its names and its configuration are those of its own family.
ForeignModel ModelUnderOwnNames(const Model& model, Dtype dtype,
                                const std::vector<ParameterSpec>& parameters) {
  ForeignModel own = CanonicalModel(parameters);
  json config = model.Get("config");
  if (KeptOfHuggingFace(model, "stored_dtype") != json(TorchName(dtype))) {
    if (!config.contains("dtype")) config["torch_dtype"] = "";
    SetDtype(TorchName(dtype), config);
  }
  own.files["config.json"] = Dump(config);
  if (const json generation = KeptOfHuggingFace(model, "generation_config"); generation.is_object())
    own.files["generation_config.json"] = Dump(generation);
  return own;
}

// Engines ask for copies that a release has. `kept`: the names of those that it had.
void AddCopies(const std::map<std::string, std::string>& originals, const json& kept, ForeignModel& model) {
  for (const auto& [name, parameter] : originals) {
    if (!kept.is_array() || std::ranges::find(kept, json(name)) == kept.end()) continue;
    const auto fills = [&](const ForeignTensor& tensor) { return tensor.parts[0].parameter == parameter; };
    const auto original = std::ranges::find_if(model.tensors, fills);
    if (original == model.tensors.end()) continue;
    ForeignTensor copy = *original;
    copy.name = name;
    for (ForeignPart& part : copy.parts) part.parameter = name;
    model.tensors.push_back(std::move(copy));
    model.copies.emplace(name, parameter);
  }
}

Status DoesNotFit(const ForeignTensor& tensor, const ForeignPart& part, const ParameterSpec& spec) {
  return Corrupt("tensor {} has shape {}; in {} of shape {} it would be {}", spec.name, ToString(spec.shape),
                 tensor.name, ToString(tensor.shape), ToString(part.box));
}

}  // namespace

Result<ForeignModel> HuggingFaceModel(const Model& model, Dtype dtype,
                                      const std::vector<ParameterSpec>& parameters) {
  const Family* family = FindFamily(model.architecture.value_or(""));
  if (!model.architecture && model.rest.contains("config"))
    return ModelUnderOwnNames(model, dtype, parameters);
  if (!model.architecture)
    return NotSupported(
        "the source does not say which family of models this is, but a Hugging Face release needs one; name "
        "the config.json of a transformers model by --config FILE, or use the format safetensors, which "
        "keeps the tensors under their own names");
  if (family == nullptr)
    return NotSupported(
        "architecture {} has no Hugging Face form in Cairn; the format safetensors keeps canonical names",
        TextOfFamily(model.architecture).dump());
  const auto in_manifest = [](const Status& status) { return status.WithContext("the manifest's model"); };
  Result<ExpandedModel> expanded = Expand(*family, model);
  if (!expanded.ok()) return in_manifest(expanded.status());
  const Result<json> config = ConfigOfModel(*family, model, dtype);
  if (!config.ok()) return in_manifest(config.status());
  CAIRN_RETURN_IF_ERROR(CheckConfigFunction(*family, model, *config));
  ForeignModel release{
      std::move(expanded->tensors),
      {{"config.json", Dump(*config)}, {"generation_config.json", Dump(GenerationConfig(model, *config))}}};
  AddCopies(CopiesIn(*family, model), KeptOfHuggingFace(model, kCopies), release);
  return release;
}

bool LeaveOutCode(ForeignModel& model) {
  const auto file = model.files.find("config.json");
  if (file == model.files.end()) return false;
  json config = json::parse(file->second);
  const json map = config.value("auto_map", json());
  // "org/repository--modeling_x.XModel" is code in another repository.
  const bool beside =
      map.is_object() && std::ranges::any_of(map, [](const json& code) {
        return code.is_string() && code.get_ref<const std::string&>().find("--") == std::string::npos;
      });
  if (!beside) return false;
  config.erase("auto_map");
  file->second = Dump(config);
  return true;
}

std::string FamilyWithoutTable(const Model& model) {
  const json& config = model.Get("config");
  if (model.architecture || !config.is_object()) return {};
  const json classes = config.value("architectures", json());
  const json name = classes.is_array() && !classes.empty() ? classes[0] : json();
  return fmt::format("model_type {} ({})", config.value("model_type", json()).dump(), name.dump());
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
      if (!part.Fits(spec.shape, tensor.seen_shape())) return DoesNotFit(tensor, part, spec);
      found->second.elements += part.box.Volume();
    }
  }
  for (const ParameterSpec& spec : parameters) {
    const uint64_t elements = uses.at(spec.name).elements, volume = spec.shape.Volume();
    if (elements == 0 && volume > 0) return Corrupt("tensor {} has no place in the target format", spec.name);
    if (elements != volume)
      return Corrupt("tensor {} has shape {}, but the manifest's model gives it {} elements", spec.name,
                     ToString(spec.shape), elements);
  }
  return OkStatus();
}

}  // namespace cairn
