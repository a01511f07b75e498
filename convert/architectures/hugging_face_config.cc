#include "convert/architectures/hugging_face_config.h"

#include "convert/architectures/expand.h"
#include "convert/architectures/rope.h"

namespace cairn {
namespace {

using nlohmann::json;

const json* FindKey(const Field& field, const json& config) {
  for (const std::string& key : field.config)
    if (const auto found = config.find(key); found != config.end() && !found->is_null()) return &*found;
  return nullptr;
}

// What may be left out and follows from other sizes.
void Derive(const Architecture& architecture, json& model) {
  const Result<ModelSizes> sizes = ReadSizes(model);
  if (!sizes.ok()) return;  // the caller tells
  for (const auto& [name, size] :
       {std::pair("num_key_value_heads", sizes->key_value_heads), std::pair("head_dim", sizes->head),
        std::pair("ffn_hidden_size", sizes->ffn)})
    for (const Field& field : architecture.fields)
      if (field.model == name && !model.contains(name)) model[name] = size;
}

Status CheckRefusals(const Architecture& architecture, const json& config) {
  for (const Refusal& refusal : architecture.refusals) {
    const json value = config.value(refusal.config, json());
    const json wanted = refusal.same_as.empty() ? refusal.only : config.value(refusal.same_as, json());
    if (!value.is_null() && value != wanted)
      return NotSupported("config.json: {} is {}; the {} table knows {} only", refusal.config, value.dump(),
                          architecture.name, wanted.dump());
  }
  if (config.contains("quantization_config") && !config["quantization_config"].is_null())
    return NotSupported(
        "config.json: quantized weights (quantization_config) cannot be read; dequantize them first");
  return OkStatus();
}

// A boolean that decides on tensors must be one.
Status CheckFlags(const Architecture& architecture, const json& model) {
  for (const Field& field : architecture.fields)
    if (field.fallback.is_boolean() && !model.at(field.model).is_boolean())
      return InvalidArgument("config.json: {} is {}; it must be true or false", field.config[0],
                             model.at(field.model).dump());
  return OkStatus();
}

std::string_view TorchName(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return "float64";
    case Dtype::kF16:
      return "float16";
    case Dtype::kBF16:
      return "bfloat16";
    default:
      return "float32";
  }
}

}  // namespace

Result<json> ModelOfConfig(const Architecture& architecture, const json& config) {
  CAIRN_RETURN_IF_ERROR(CheckRefusals(architecture, config));
  json model = architecture.model;
  model["architecture"] = architecture.name;
  for (const Field& field : architecture.fields) {
    const json* value = FindKey(field, config);
    if (value != nullptr)
      model[field.model] = *value;
    else if (!field.fallback.is_null())
      model[field.model] = field.fallback;
  }
  if (architecture.rope) CAIRN_RETURN_IF_ERROR(ReadRope(config, model));
  Derive(architecture, model);
  CAIRN_RETURN_IF_ERROR(ReadSizes(model).status().WithContext("config.json"));
  CAIRN_RETURN_IF_ERROR(CheckFlags(architecture, model));
  return model;
}

Result<json> ConfigOfModel(const Architecture& architecture, const json& model, Dtype dtype) {
  const json kept = model.value("hugging_face", json::object()).value("config", json());
  const bool has_kept = kept.is_object() && kept.value("model_type", json()) == architecture.name;
  json config = has_kept ? kept : architecture.config;
  json was = json::object();
  if (has_kept) {
    CAIRN_ASSIGN_OR_RETURN(was, ModelOfConfig(architecture, kept));
  } else {
    config["architectures"] = {architecture.class_name};
    config["model_type"] = architecture.name;
    for (const char* token : {"bos_token_id", "eos_token_id"}) config[token] = model.value(token, json());
  }
  for (const Field& field : architecture.fields) {
    const auto value = model.find(field.model);
    if (value == model.end()) {
      if (!field.fallback.is_null() && !has_kept) config[field.config[0]] = field.fallback;
      continue;
    }
    if (was.value(field.model, json()) == *value) continue;
    for (const std::string& key : field.config) config.erase(key);
    config[field.config[0]] = *value;
  }
  if (architecture.rope) {
    const auto same = [&](const char* name) { return was.value(name, json()) == model.value(name, json()); };
    WriteRope(model, has_kept && same("rotary_base") && same("rotary_percent") && same("rope_scaling"),
              config);
  }
  config["dtype"] = config["torch_dtype"] = TorchName(dtype);  // the latter: transformers before 5
  return config;
}

}  // namespace cairn
