// Reading goes from refusals to fields, rope, derived sizes and the window. Every other key that is not known
// to be harmless is kept in `other`: an unknown key is never ignored. Writing begins with the file that was
// kept, if any, and reads it again: only fields in which that reading differs from the model are written, and
// everything else comes back as it was.

#include "ckpt/families/hugging_face_config.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <sstream>
#include <utility>

#include "ckpt/base/glob.h"
#include "ckpt/families/built_in_families.h"
#include "ckpt/families/config_spellings.h"
#include "ckpt/families/expand.h"
#include "ckpt/families/families.h"

namespace cairn {
namespace {

using nlohmann::json;

// Globs of keys that change nothing in any family. transformers 5.23, PretrainedConfig and the families'.
constexpr const char* kHarmless[] = {
    // names and versions
    "_* architectures model_type transformers_version auto_map name_or_path vocab_file tokenizer_class",
    "prefix unsloth* generation_config task_specific_params",
    // tokens, dropout, initialization, precision of the computation
    "*_token_id *_token_ids *dropout *pdrop *drop layerdrop initializer_range init_std dtype torch_dtype",
    "use_bfloat16 quantization_config gradient_checkpointing chunk_size_feed_forward attn_implementation",
    // what is returned
    "use_cache return_dict return_dict_in_generate use_return_dict output_* torchscript tf_legacy_loss",
    "pruned_heads is_decoder is_encoder_decoder tie_encoder_decoder cross_attention_hidden_size",
    // heads for classification
    "summary_* problem_type finetuning_task id2label label2id num_labels",
    // generation
    "max_sequence_length max_length min_length do_sample early_stopping num_beams num_beam_groups",
    "diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty",
    "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences",
    "exponential_decay_length_penalty suppress_tokens begin_suppress_tokens remove_invalid_values",
};
constexpr const char* kOther = "config.";  // before the names of keys in a model's `other`
// Read with rope_scaling; they mean nothing without it.
constexpr const char* kOfRope[] = {
    "rope_parameters", "rope_scaling",          "rope_theta",     "rotary_emb_base",
    "rotary_pct",      "partial_rotary_factor", "rotary_percent", "original_max_position_embeddings"};

const json* FindKey(const Field& field, const json& config) {
  for (const std::string& key : field.config)
    if (const auto found = config.find(key); found != config.end() && (field.nullable || !found->is_null()))
      return &*found;
  return nullptr;
}

const json& SizesOnly() {
  static const json kSizesOnly = json::parse(SizesOnlyText());
  return kSizesOnly;
}

// The sizes that all families have, by each spelling that one of them uses.
Model SizesOf(const json& config) {
  Model model;
  for (const auto& [name, keys] : SizesOnly()["sizes"].items())
    if (const json* value = FindKey({name, keys}, config)) model.Set(name, *value);
  return model;
}

// Globs of keys of models whose size ModelShape cannot tell, unless the family's table has the key: mixtures
// of experts, latent attention, state spaces, two stacks of layers.
constexpr const char* kUncounted[] = {"*expert*",           "*lora_rank",        "ssm_*",         "mamba_*",
                                      "state_size",         "linear_num_*",      "linear_conv_*", "hybrid_*",
                                      "is_encoder_decoder", "layers_block_type", "block_types"};
// The keys under which models of several parts keep the sizes of the decoder.
constexpr const char* kDecoderParts[] = {"text_config", "llm_config", "language_config"};

// One expert, or none, is a dense model.
bool IsUncounted(const std::string& key, const json& value) {
  const bool says = value == true || (value.is_number() && value > 1) || (value.is_array() && !value.empty());
  if (says && std::ranges::any_of(kUncounted, [&](const char* glob) { return FitsGlob(key, glob); }))
    return true;
  return key == "layer_types" && value.is_array() && std::ranges::any_of(value, [](const json& type) {
           return type != "full_attention" && type != "sliding_attention" && type != "chunked_attention";
         });
}

bool SaysNothing(const json& value) {
  return value.is_null() || value == false || (!value.is_primitive() && value.empty()) || value == "";
}

bool IsKnown(const Family& family, const std::string& key) {
  const auto fits = [&](const auto& glob) { return FitsGlob(key, std::string(glob)); };
  const auto fits_one = [&](const char* globs) {
    std::istringstream words(globs);
    return std::any_of(std::istream_iterator<std::string>(words), {}, fits);
  };
  return std::ranges::any_of(kHarmless, fits_one) || std::ranges::any_of(family.harmless, fits) ||
         (family.rope && std::ranges::any_of(kOfRope, fits)) ||
         std::ranges::any_of(family.refusals, fits, &Refusal::config) ||
         std::ranges::any_of(family.fields,
                             [&](const Field& field) { return std::ranges::any_of(field.config, fits); });
}

// `table` is that of the family, or null. Nested objects count, too: some families keep the experts in one. A
// part with the decoder is checked by its own family.
Status CheckCounted(const json& config, const Family* table) {
  const auto counts = [&](const std::string& key) {
    return table != nullptr && std::ranges::any_of(table->fields, [&](const Field& field) {
             return std::ranges::find(field.config, key) != field.config.end();
           });
  };
  for (const auto& [key, value] : config.items()) {
    if (IsUncounted(key, value) && !counts(key))
      return NotSupported(
          "{} is {}: experts and latent attention of families without a table, state spaces and encoders "
          "are not counted yet",
          key, value.dump());
    if (value.is_object() && std::ranges::find(kDecoderParts, key) == std::end(kDecoderParts))
      if (const Status inner = CheckCounted(value, table); !inner.ok()) return inner.WithContext(key);
  }
  return OkStatus();
}

// A family without such a field derives the size from the others; another size is another function.
bool IsImplied(const std::string& key, const json& value, const Model& model) {
  const Model function = FunctionOf(model);
  for (const auto size : {&Model::num_key_value_heads, &Model::head_dim, &Model::hidden_size})
    if (key == NameOf(size)) return value == Or(function.*size, model.*size);
  return false;
}

void ReadOthers(const Family& family, const json& config, Model& model) {
  for (const auto& [key, value] : config.items())
    if (!SaysNothing(value) && !IsKnown(family, key) && !IsImplied(key, value, model))
      model.other[kOther + key] = value;
}

Status CheckRefusals(const Family& family, const json& config) {
  for (const Refusal& refusal : family.refusals) {
    const json value = config.value(refusal.config, json());
    const json wanted = refusal.same_as.empty() ? refusal.only : config.value(refusal.same_as, json());
    if (!value.is_null() && value != wanted)
      return NotSupported("config.json: {} is {}; the {} table supports only {}", refusal.config,
                          value.dump(), family.name, wanted.dump());
  }
  return OkStatus();
}

// A flag that decides on tensors must be a boolean.
Status CheckFlags(const Family& family, const Model& model) {
  for (const Field& field : family.fields)
    if (const json& value = model.Get(field.name); field.fallback.is_boolean() && !value.is_boolean())
      return InvalidArgument("config.json: {} is {}; it must be true or false", field.config[0],
                             value.dump());
  return OkStatus();
}

// The fields of the table that `config` states, or their fallbacks.
Model FieldsOf(const Family& family, const json& config) {
  Model model = family.model;
  for (const Field& field : family.fields) {
    const json* value = FindKey(field, config);
    if (value != nullptr && !value->is_null())
      model.Set(field.name, *value);
    else if (value == nullptr && !field.fallback.is_null())
      model.Set(field.name, field.fallback);
  }
  return model;
}

// The values of fields that follow from others. Errors: InvalidArgument naming an ill-typed key.
Status ReadSpellings(const Family& family, Model& model) {
  DeriveSizes(family, model);
  CAIRN_RETURN_IF_ERROR(ReadShape(model).status().WithContext("config.json"));
  CAIRN_RETURN_IF_ERROR(CheckFlags(family, model));
  CAIRN_RETURN_IF_ERROR(ReadDenseLayers(model));
  ReadWindow(model);
  ReadLayersWithRope(model);
  FillLists(family, model);
  return OkStatus();
}

// What a file says of a field; null: nothing, unless the field is nullable.
json Stated(const Field& field, const Model& model, const Model& function) {
  if (const json& value = model.Get(field.name); !value.is_null()) return value;
  const json& implied = function.Get(field.name);
  return field.nullable || (!implied.is_null() && !field.fallback.is_null()) ? implied : field.fallback;
}

// The sizes, the modules, and `tied` as the family has it by default, without multi-token prediction; `table`
// is null if it has none. An unknown family is assumed to be like the newer ones.
Result<ModelShape> ShapeOfFamily(const Family* table, const json& config) {
  Model model = SizesOf(config);
  if (table == nullptr) {
    CAIRN_ASSIGN_OR_RETURN(ModelShape shape, ReadShape(model));
    const Model known = SizesOnly()["families"].value(ModelTypeOf(config), json::object());
    DenseModules modules = known.gated_mlp == false ? DenseModules() : kLlamaModules;
    modules.positions = known.rest.value("learned_positions", false);
    shape.modules = modules;
    shape.tied = IsOn(known.tied_embeddings);
    return shape;
  }
  model.Update(FieldsOf(*table, config));
  model.mtp_layers = nullptr;
  DeriveSizes(*table, model);
  CAIRN_ASSIGN_OR_RETURN(ModelShape shape, ReadShape(model));
  CAIRN_RETURN_IF_ERROR(ReadDenseLayers(model));
  ReadWindow(model);
  if (HasMixers(model)) return NotSupported("layer_types: gated delta nets are not counted yet");
  CAIRN_ASSIGN_OR_RETURN(shape.modules, ModulesOf(*table, std::move(model)));
  return shape;
}

}  // namespace

Result<Model> ModelOfConfig(const Family& family, const json& config) {
  CAIRN_RETURN_IF_ERROR(CheckRefusals(family, config));
  Model model = FieldsOf(family, config);
  model.architecture = family.name;
  if (family.rope) CAIRN_RETURN_IF_ERROR(ReadRope(config, model));
  CAIRN_RETURN_IF_ERROR(ReadSpellings(family, model));
  ReadOthers(family, config, model);
  model.rest["function"] = kFunctionVersion;
  return model;
}

Result<ModelShape> ShapeOfConfig(const json& config) {
  const Family* table = FindFamily(ModelTypeOf(config));
  CAIRN_RETURN_IF_ERROR(CheckCounted(config, table));
  if (SizesOf(config).num_layers.is_null())
    for (const char* part : kDecoderParts)
      if (const auto found = config.find(part); found != config.end() && found->is_object()) {
        json decoder = *found;
        if (!decoder.contains("tie_word_embeddings") && config.contains("tie_word_embeddings"))
          decoder["tie_word_embeddings"] = config["tie_word_embeddings"];
        Result<ModelShape> shape = ShapeOfConfig(decoder);
        return shape.ok() ? shape : shape.status().WithContext(part);
      }
  CAIRN_ASSIGN_OR_RETURN(ModelShape shape, ShapeOfFamily(table, config));
  if (shape.positions > 0) shape.seq = shape.positions;
  if (!shape.modules.Has("embedding.position")) shape.positions = 0;
  if (const json tied = config.value("tie_word_embeddings", json()); tied.is_boolean()) shape.tied = tied;
  return shape;
}

json KeptOfHuggingFace(const Model& model, const char* key) {
  const json& kept = model.Get("hugging_face");
  return kept.is_object() ? kept.value(key, json()) : json();
}

Result<json> ConfigOfModel(const Family& family, const Model& given, Dtype dtype) {
  const Model function = FunctionOf(given), model = WithSpellings(family, given, function);
  const json kept = KeptOfHuggingFace(model, "config");
  const bool has_kept = kept.is_object() && kept.value("model_type", json()) == family.name;
  json config = has_kept ? kept : family.config;
  Model was;
  if (has_kept) {
    CAIRN_ASSIGN_OR_RETURN(was, ModelOfConfig(family, kept));
  } else {
    config["architectures"] = {family.class_name};
    config["model_type"] = family.name;
    for (const char* token : {"bos_token_id", "eos_token_id"})
      if (const json& id = model.Get(token); !id.is_null() || !config.contains(token)) config[token] = id;
  }
  for (const Field& field : family.fields) {
    const json value = has_kept ? model.Get(field.name) : Stated(field, model, function);
    if (value.is_null() ? has_kept || !field.nullable : value == was.Get(field.name)) continue;
    for (const std::string& key : field.config) config.erase(key);
    config[field.config[0]] = value;
  }
  if (family.rope) {
    Model rotated = model;
    if (!has_kept && !family.model.rotary_percent.is_null()) rotated.rotary_percent = function.rotary_percent;
    const bool same = was.rotary_base == model.rotary_base && was.rotary_percent == model.rotary_percent &&
                      was.rope_scaling == model.rope_scaling;
    WriteRope(rotated, family.rope_also, has_kept && same, config);
  }
  // transformers computes in the type of the file as long as the weights have their original type.
  const json stored = KeptOfHuggingFace(model, "stored_dtype");
  json type = TorchName(dtype);
  if (has_kept && stored == type)
    for (const char* key : {"torch_dtype", "dtype"})
      if (kept.contains(key) && kept[key].is_string()) type = kept[key];
  config["dtype"] = config["torch_dtype"] = type;  // the latter: transformers before 5
  return config;
}

Result<Model> HeldBy(const Family& family, const Model& given) {
  const Model function = FunctionOf(given);
  Model model = WithSpellings(family, given, function), held = family.model;
  for (const Field& field : family.fields)
    if (json value = Stated(field, model, function); !value.is_null()) held.Set(field.name, std::move(value));
  if (!held.rotary_percent.is_null()) model.rotary_percent = function.rotary_percent;
  if (family.rope) CAIRN_RETURN_IF_ERROR(TakeRope(model, held));
  CAIRN_RETURN_IF_ERROR(ReadSpellings(family, held));
  return held;
}

Model CompleteModel(const Model& model) {
  const json kept = KeptOfHuggingFace(model, "config");
  if (model.rest.contains("function") || !kept.is_object()) return model;
  const Family* family = FindFamily(ModelTypeOf(kept));
  if (family == nullptr || model.architecture != family->name) return model;
  Result<Model> complete = ModelOfConfig(*family, kept);
  if (!complete.ok()) return model;
  complete->Update(model);
  return *std::move(complete);
}

Status CheckConfigFunction(const Family& family, const Model& model, const json& config) {
  CAIRN_ASSIGN_OR_RETURN(Model back, ModelOfConfig(family, config));
  // The written file may also have a setting of the model's own file that --allow ignored.
  const json kept = KeptOfHuggingFace(model, "config"), others = back.other;
  for (const auto& [name, value] : others.items())
    if (kept.is_object() && kept.value(name.substr(std::strlen(kOther)), json()) == value &&
        !model.other.contains(name))
      back.other.erase(name);
  return SameFunction(CompleteModel(model), back, "transformers' " + family.class_name);
}

}  // namespace cairn
