#include "ckpt/families/config_spellings.h"

#include <algorithm>
#include <functional>
#include <set>

namespace cairn {
namespace {

using nlohmann::json;

constexpr const char* kDense = "dense";  // in mlp_layer_types

bool IsSize(const json& value) { return value.is_number_integer() && value >= 0 && value <= kMaxModelSize; }

bool HasField(const Family& family, json ModelValues::*field) {
  return std::ranges::find(family.fields, NameOf(field), &Field::name) != family.fields.end();
}

// The inverse of ReadWindow().
void WriteWindow(const Family& family, const Model& function, Model& model) {
  if (!HasField(family, &Model::use_sliding_window) || !model.use_sliding_window.is_null() ||
      function.sliding_window.is_null())
    return;
  model.use_sliding_window = true;
  if (function.layer_types.is_null()) model.max_window_layers = 0;  // all layers see it
}

// The value of the first of `keys` that is present and not null.
json FirstKey(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const json value = object.value(key, json()); !value.is_null()) return value;
  return nullptr;
}

// rope_scaling with the key that all versions since 4.43 know; null if it is the default.
json Scaling(json object) {
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) object.erase(key);
  if (object.contains("type") && !object.contains("rope_type")) object["rope_type"] = object["type"];
  object.erase("type");
  if (object.value("rope_type", json()) == "yarn") {  // transformers takes both or none
    const auto is_set = [&](const char* key) {
      return object.contains(key) && object[key] != nullptr && object[key] != 0;
    };
    if (!is_set("mscale") || !is_set("mscale_all_dim"))
      for (const char* key : {"mscale", "mscale_all_dim"}) object.erase(key);
    if (object.value("attention_factor", json()).is_null()) object.erase("attention_factor");
  }
  const bool is_default = object.empty() || object.value("rope_type", json("default")) == "default";
  return is_default ? json() : object;
}

}  // namespace

Status ReadDenseLayers(Model& model) {
  const json step = Or(model.decoder_sparse_step, 1), only = Or(model.mlp_only_layers, json::array());
  if (!step.is_number_integer() || step <= 0 || !only.is_array())
    return InvalidArgument(
        "config.json: decoder_sparse_step is {} and mlp_only_layers is {}; these must be a positive integer "
        "and a list",
        step.dump(), only.dump());
  const json first = Or(model.first_k_dense_replace, 0);
  if (!first.is_number_integer())
    return InvalidArgument("config.json: first_k_dense_replace is {}; it must be an integer", first.dump());
  const json& mixtures = model.moe_layers;
  if (!mixtures.is_array() && !mixtures.is_null())
    return InvalidArgument("config.json: moe_layers is {}; it must be a list", mixtures.dump());
  const json& list = mixtures.is_array() ? mixtures : only;
  const std::set<json> named(list.begin(), list.end());
  const json& kinds = model.mlp_layer_types;
  const auto is_dense = [&](int64_t i) {
    if (kinds.is_array()) return std::cmp_greater_equal(i, kinds.size()) || kinds[i] == kDense;
    if (mixtures.is_array()) return !named.contains(i);
    return first > i || (i + 1) % step.get<int64_t>() != 0 || named.contains(i);
  };
  json dense = json::array();
  for (int64_t i = 0; i < model.num_layers.get<int64_t>(); ++i)
    if (is_dense(i)) dense.push_back(i);
  if (!dense.empty()) model.dense_layers = std::move(dense);
  return OkStatus();
}

void DeriveSizes(const Family& family, Model& model) {
  const auto derive = [](json& size, const json& one, const json& other, const auto& of) {
    if (IsSize(one) && IsSize(other)) size = of(one.get<uint64_t>(), other.get<uint64_t>());
  };
  derive(model.head_dim, model.qk_nope_head_dim, model.qk_rope_head_dim, std::plus<uint64_t>());
  derive(model.shared_expert_ffn_hidden_size, model.n_shared_experts, model.moe_ffn_hidden_size,
         std::multiplies<uint64_t>());
  const Result<ModelShape> shape = ReadShape(model);
  if (!shape.ok()) return;  // the caller reports it
  for (const auto& [field, size] :
       {std::pair(&Model::num_key_value_heads, shape->kv_heads), std::pair(&Model::head_dim, shape->head_dim),
        std::pair(&Model::ffn_hidden_size, shape->ffn)})
    if (HasField(family, field) && (model.*field).is_null()) model.*field = size;
}

void ReadWindow(Model& model) {
  const auto layers = static_cast<uint64_t>(std::clamp<int64_t>(IntOf(model.num_layers), 0, kMaxLayers));
  json& types = model.layer_types;
  if (!model.use_sliding_window.is_null() && model.use_sliding_window != true)
    model.sliding_window = types = nullptr;
  else if (const int64_t interval = IntOf(model.full_attention_interval); !types.is_array() && interval > 0)
    for (uint64_t i = 1; i <= layers; ++i)
      types.push_back(i % static_cast<uint64_t>(interval) == 0 ? "full_attention" : "linear_attention");
  else if (!types.is_array() && model.max_window_layers.is_number())
    for (uint64_t i = 0; i < layers; ++i)
      types.push_back(model.max_window_layers <= i ? "sliding_attention" : "full_attention");
  const uint64_t stated = types.is_array() ? types.size() : 0;
  for (uint64_t i = stated; stated > 0 && i < layers; ++i) types.push_back(json(types[i - stated]));
}

void ReadLayersWithRope(Model& model) {
  const json& with = model.layers_with_rope;
  const int64_t interval = IntOf(model.no_rope_interval);
  const bool listed = with.is_array() && !with.empty();
  if (!listed && interval <= 0) return;
  json without = json::array();
  for (int64_t i = 0; i < std::min<int64_t>(IntOf(model.num_layers), kMaxLayers); ++i)
    without.push_back(listed ? (std::cmp_less(i, with.size()) && with[i] != 0 ? 0 : 1)
                             : ((i + 1) % interval == 0 ? 1 : 0));
  model.layers_without_rope = std::move(without);
}

void FillLists(const Family& family, Model& model) {
  const int64_t layers = std::min<int64_t>(IntOf(model.num_layers), kMaxLayers);
  const json dense = Or(model.dense_layers, json::array()), &without = model.layers_without_rope;
  if (HasField(family, &Model::mlp_layer_types) && model.mlp_layer_types.is_null())
    for (int64_t i = 0; i < layers; ++i)
      model.mlp_layer_types.push_back(std::ranges::find(dense, json(i)) != dense.end() ? kDense : "sparse");
  const bool listed = without.is_array() && std::cmp_greater_equal(without.size(), layers);
  if (HasField(family, &Model::layers_with_rope) && model.layers_with_rope.is_null() &&
      (listed || without.is_null()))
    for (int64_t i = 0; i < layers; ++i)
      model.layers_with_rope.push_back(listed && without[i] != 0 && without[i] != false ? 0 : 1);
}

Model WithSpellings(const Family& family, Model model, const Model& function) {
  WriteWindow(family, function, model);
  const auto lacks = [&](json ModelValues::*field) {
    return (model.*field).is_null() && HasField(family, field);
  };
  const json dense = Or(model.dense_layers, json::array());
  if (lacks(&Model::mlp_only_layers)) model.mlp_only_layers = dense;
  if (lacks(&Model::first_k_dense_replace)) {
    uint64_t first = 0;
    while (first < dense.size() && dense[first] == first) ++first;
    model.first_k_dense_replace = first;
  }
  for (const auto groups : {&Model::router_groups, &Model::router_groups_per_token})  // null is one group
    if (const auto field = std::ranges::find(family.fields, NameOf(groups), &Field::name);
        field != family.fields.end() && !field->nullable && (function.*groups).is_null())
      model.*groups = 1;
  if (lacks(&Model::layers_with_rope)) model.layers_without_rope = function.layers_without_rope;
  FillLists(family, model);
  const json &shared = model.shared_expert_ffn_hidden_size, &one = model.moe_ffn_hidden_size;
  if (lacks(&Model::n_shared_experts) && IsSize(one) && one > 0 && (shared.is_null() || IsSize(shared)))
    model.n_shared_experts = shared.is_null() ? 0 : shared.get<uint64_t>() / one.get<uint64_t>();
  return model;
}

Status ReadRope(const json& config, Model& model) {
  const json empty = json::object();
  json parameters = config.value("rope_parameters", json());
  if (!parameters.is_object()) parameters = empty;
  for (const auto& [key, value] : parameters.items())
    if (value.is_object())
      return NotSupported(
          "config.json: rope_parameters differ by kind of layer ({}), which no table supports", key);
  json scaling = config.value("rope_scaling", json());
  if (!scaling.is_object()) scaling = parameters;
  Model stated;
  stated.rope_scaling = scaling;
  stated.rotary_base = FirstKey(parameters, {"rope_theta"});
  if (stated.rotary_base.is_null()) stated.rotary_base = FirstKey(config, {"rope_theta", "rotary_emb_base"});
  stated.rotary_percent = FirstKey(parameters, {"partial_rotary_factor"});
  if (stated.rotary_percent.is_null())
    stated.rotary_percent = FirstKey(config, {"partial_rotary_factor", "rotary_pct"});
  return TakeRope(stated, model);
}

Status TakeRope(const Model& rotated, Model& model) {
  const json &percent = rotated.rotary_percent, &scaling = rotated.rope_scaling;
  if (!rotated.rotary_base.is_null()) model.rotary_base = rotated.rotary_base;
  if (!percent.is_null() && percent != 1 && model.rotary_percent.is_null())
    return NotSupported(
        "config.json: partial_rotary_factor is {}; transformers applies it only to some kinds of rope of "
        "this family, and no table says which",
        percent.dump());
  if (!percent.is_null() && !model.rotary_percent.is_null()) model.rotary_percent = percent;
  if (scaling.is_object() && !Scaling(scaling).is_null()) model.rope_scaling = Scaling(scaling);
  return OkStatus();
}

void WriteRope(const Model& model, const std::map<std::string, std::string>& also, bool keep, json& config) {
  const auto set = [&](const std::string& key, const json& value) {
    for (const auto& [first, second] : also)
      if (first == key && !value.is_null() && !(keep && config.contains(second))) config[second] = value;
    if (!value.is_null() && !(keep && config.contains(key))) config[key] = value;
  };
  const json &theta = model.rotary_base, &percent = model.rotary_percent, &scaling = model.rope_scaling;
  json parameters = scaling.is_object() ? scaling : json{{"rope_type", "default"}};
  if (!theta.is_null()) parameters["rope_theta"] = theta;
  if (!percent.is_null()) parameters["partial_rotary_factor"] = percent;
  set("rope_parameters", parameters);
  set("rope_scaling", scaling);
  set("rope_theta", theta);
  set("partial_rotary_factor", percent);
}

}  // namespace cairn
