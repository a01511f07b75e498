#include "ckpt/families/config_spellings.h"

#include <algorithm>
#include <functional>
#include <set>

#include "ckpt/model/shape.h"

namespace cairn {
namespace {

using nlohmann::json;

bool IsSize(const json& value) { return value.is_number_integer() && value >= 0 && value <= kMaxModelSize; }

// The inverse of ReadWindow().
json WithWindow(const Architecture& architecture, json model, const json& function) {
  const bool has_switch = std::ranges::any_of(
      architecture.fields, [](const Field& field) { return field.model == "use_sliding_window"; });
  if (!has_switch || model.contains("use_sliding_window") || function["sliding_window"].is_null())
    return model;
  model["use_sliding_window"] = true;
  if (function["layer_types"].is_null()) model["max_window_layers"] = 0;  // all layers see it
  return model;
}

}  // namespace

Status ReadDenseLayers(json& model) {
  const json step = model.value("decoder_sparse_step", json(1)),
             only = model.value("mlp_only_layers", json::array());
  if (!step.is_number_integer() || step <= 0 || !only.is_array())
    return InvalidArgument(
        "config.json: decoder_sparse_step is {} and mlp_only_layers is {}; these must be a positive integer "
        "and a list",
        step.dump(), only.dump());
  const json first = model.value("first_k_dense_replace", json(0));
  if (!first.is_number_integer())
    return InvalidArgument("config.json: first_k_dense_replace is {}; it must be an integer", first.dump());
  const json mixtures = model.value("moe_layers", json());
  if (!mixtures.is_array() && !mixtures.is_null())
    return InvalidArgument("config.json: moe_layers is {}; it must be a list", mixtures.dump());
  const json& list = mixtures.is_array() ? mixtures : only;
  const std::set<json> named(list.begin(), list.end());
  const auto is_dense = [&](int64_t i) {
    if (mixtures.is_array()) return !named.contains(i);
    return first > i || (i + 1) % step.get<int64_t>() != 0 || named.contains(i);
  };
  json dense = json::array();
  for (int64_t i = 0; i < model["num_layers"].get<int64_t>(); ++i)
    if (is_dense(i)) dense.push_back(i);
  if (!dense.empty()) model["dense_layers"] = std::move(dense);
  return OkStatus();
}

void DeriveSizes(const Architecture& architecture, json& model) {
  const auto derive = [&](const char* size, const char* a, const char* b, const auto& of) {
    const json one = model.value(a, json()), other = model.value(b, json());
    if (IsSize(one) && IsSize(other)) model[size] = of(one.get<uint64_t>(), other.get<uint64_t>());
  };
  derive("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", std::plus<uint64_t>());
  derive("shared_expert_ffn_hidden_size", "n_shared_experts", "moe_ffn_hidden_size",
         std::multiplies<uint64_t>());
  const Result<ModelShape> shape = ReadShape(model);
  if (!shape.ok()) return;  // the caller reports it
  for (const auto& [name, size] :
       {std::pair("num_key_value_heads", shape->kv_heads), std::pair("head_dim", shape->head_dim),
        std::pair("ffn_hidden_size", shape->ffn)})
    for (const Field& field : architecture.fields)
      if (field.model == name && !model.contains(name)) model[name] = size;
}

void ReadWindow(json& model) {
  if (!model.contains("use_sliding_window")) return;
  if (model["use_sliding_window"] != true) {
    model.erase("sliding_window");
    model.erase("layer_types");
  } else if (!model.value("layer_types", json()).is_array() &&
             model.value("max_window_layers", json()).is_number() &&
             model.value("num_layers", json()).is_number_unsigned() && model["num_layers"] < (1 << 16)) {
    for (uint64_t i = 0; i < model["num_layers"].get<uint64_t>(); ++i)
      model["layer_types"].push_back(model["max_window_layers"] <= i ? "sliding_attention"
                                                                     : "full_attention");
  }
}

json WithSpellings(const Architecture& architecture, json model, const json& function) {
  model = WithWindow(architecture, std::move(model), function);
  const auto lacks = [&](const char* name) {
    return !model.contains(name) &&
           std::ranges::find(architecture.fields, name, &Field::model) != architecture.fields.end();
  };
  const json dense = model.value("dense_layers", json::array());
  if (lacks("mlp_only_layers")) model["mlp_only_layers"] = dense;
  if (lacks("first_k_dense_replace")) {
    uint64_t first = 0;
    while (first < dense.size() && dense[first] == first) ++first;
    model["first_k_dense_replace"] = first;
  }
  const json shared = model.value("shared_expert_ffn_hidden_size", json()),
             one = model.value("moe_ffn_hidden_size", json());
  if (lacks("n_shared_experts") && IsSize(one) && one > 0 && (shared.is_null() || IsSize(shared)))
    model["n_shared_experts"] = shared.is_null() ? 0 : shared.get<uint64_t>() / one.get<uint64_t>();
  return model;
}

}  // namespace cairn
