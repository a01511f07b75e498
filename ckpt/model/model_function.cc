// kFields is the only list. FunctionOf() takes each field from the model or its default, and then makes equal
// functions equal values: spellings of an activation, sizes that follow from others, a scale that is the
// default, a window that no layer uses, rotary fields without rotation. Field by field comparison is then
// enough.

#include "ckpt/model/model_function.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

namespace cairn {
namespace {

using nlohmann::json;

constexpr FunctionField kFields[] = {
    {"num_attention_heads", "heads of queries", "null"},
    {"num_key_value_heads", "heads of keys and values; left out: those of queries", "null"},
    {"head_dim", "elements of a head; left out: hidden_size / num_attention_heads", "null"},
    {"tied_embeddings", "the word embedding is the output matrix", "true"},
    {"embedding_multiplier", "factor on the word embedding's output; a number or \"sqrt(hidden_size)\"",
     "null"},
    {"position_embedding", "learned, rope, alibi or none", "\"learned\""},
    {"rotary_base", "theta of the lowest frequency", "10000"},
    {"rotary_percent", "part of a head that is rotated, 0 to 1", "1"},
    {"qk_rope_head_dim", "elements of a head that latent attention rotates", "null"},
    {"rotary_interleaved", "pairs are neighbours; else halves of the head", "false"},
    {"rope_scaling", "as transformers names it: {\"rope_type\": \"llama3\", \"factor\": 8, ...}", "null"},
    {"layers_without_rope", "as Megatron's no_rope_freq: a number or a list", "null"},
    {"sliding_window", "keys that a query sees, its own among them", "null"},
    {"layer_types", "one a layer: sliding_attention or full_attention; left out: all slide", "null"},
    {"normalization", "LayerNorm or RMSNorm", "\"LayerNorm\""},
    {"layernorm_epsilon", "added to the variance", "1e-5"},
    {"norm_weight_minus_one", "stored weights of norms are gamma - 1", "false"},
    {"residual_post_layernorm", "the residual is taken behind the norm", "false"},
    {"parallel_residual", "attention and MLP read the same input", "false"},
    {"activation", "gelu (exact), gelu_new (tanh), relu, relu2 (squared), silu, quick_gelu, ...",
     "\"gelu_new\""},
    {"gated_mlp", "act(gate) * up", "false"},
    {"num_experts", "experts of a layer that is a mixture; left out: the model has none", "null"},
    {"num_experts_per_token", "experts that a token visits", "null"},
    {"router_score", "of experts: softmax over all, or sigmoid of each", "\"softmax\""},
    {"router_method",
     "as DeepSeek names them: greedy, group_limited_greedy or noaux_tc; greedy_on_input: the scores are "
     "factors on what experts read",
     "\"greedy\""},
    {"router_scale", "factor on the weights of the visited experts", "1"},
    {"router_groups", "groups of experts, of which a token visits router_groups_per_token", "null"},
    {"router_groups_per_token", "of those groups", "null"},
    {"router_normalizes", "the scores of the visited experts are divided by their sum", "true"},
    {"dense_layers", "the numbers of the layers that are not mixtures, from 0", "[]"},
    {"attention_scale", "of query times key; left out: 1 / sqrt(head_dim)", "null"},
    {"attention_scale_by_layer", "that is divided by the layer's number, from 1", "false"},
    {"attn_logit_softcapping", "cap * tanh(x / cap) before the softmax", "null"},
    {"final_logit_softcapping", "the same of the logits", "null"},
    {"softmax", "vanilla, off-by-one or learnable", "\"vanilla\""},
    {"other", "settings of the source that no field here expresses, by their own names", "{}"},
};

bool Is(const json& value, bool wanted) { return value.is_boolean() && value.get<bool>() == wanted; }

json Activation(const json& name) {
  static constexpr std::array kSpellings = {std::pair("gelu_pytorch_tanh", "gelu_new"),
                                            std::pair("gelu_fast", "gelu_new"),
                                            std::pair("gelu_accurate", "gelu_new"),
                                            std::pair("gelu_python", "gelu"),
                                            std::pair("swish", "silu"),
                                            std::pair("relu_squared", "relu2")};
  for (const auto& [spelling, normal] : kSpellings)
    if (name == spelling) return normal;
  return name;
}

double Number(const json& value, double otherwise) {
  return value.is_number() ? value.get<double>() : otherwise;
}

void FillSizes(const json& model, json& of) {
  if (of["num_key_value_heads"].is_null()) of["num_key_value_heads"] = of["num_attention_heads"];
  const double heads = Number(of["num_attention_heads"], 0),
               hidden = Number(model.value("hidden_size", json()), 0);
  if (of["head_dim"].is_null() && heads >= 1 && hidden >= heads && hidden < 1e15)
    of["head_dim"] = static_cast<int64_t>(hidden / heads);
}

void FillAttention(const json& model, json& of) {
  json& scale = of["attention_scale"];
  const double head = Number(of["head_dim"], 0);
  if (Is(model.value("scale_attn_weights", json()), false)) scale = 1.0;
  if (const double of_gemma = Number(model.value("query_pre_attn_scalar", json()), 0);
      scale.is_null() && of_gemma > 0)
    scale = 1 / std::sqrt(of_gemma);
  if (scale.is_number() && head > 0 && std::abs(scale.get<double>() * std::sqrt(head) - 1) < 1e-6)
    scale = nullptr;
  json &window = of["sliding_window"], &types = of["layer_types"];
  if (types.is_array() && std::ranges::none_of(types, [](const json& t) { return t == "sliding_attention"; }))
    window = nullptr;
  if (window.is_null() || (types.is_array() && std::ranges::all_of(types, [](const json& t) {
                             return t == "sliding_attention";
                           })))
    types = nullptr;
}

// 8 rather than 8.0.
std::string Text(const json& value) {
  return value.is_number_float() ? fmt::format("{}", value.get<double>()) : value.dump();
}

// "other" by its own names, anything else by its field's.
void AddDifferences(const std::string& name, const json& wanted, const json& held,
                    std::vector<std::string>& differences) {
  if (wanted == held) return;
  if (name != "other" || !wanted.is_object() || !held.is_object()) {
    differences.push_back(fmt::format("{} is {}, not {}", name, Text(wanted), Text(held)));
    return;
  }
  for (const auto& [key, value] : wanted.items())
    if (held.value(key, json()) != value)
      differences.push_back(fmt::format("{} is {}, which it cannot hold", key, value.dump()));
  for (const auto& [key, value] : held.items())
    if (!wanted.contains(key)) differences.push_back(fmt::format("{} would be {}", key, value.dump()));
}

// " --allow 'args.*'" for each prefix of names in the model's `other`, if nothing else differs.
std::string FlagsThatAllow(const json& wanted, const json& there) {
  json known = wanted;
  known["other"] = there["other"];
  std::set<std::string> prefixes;
  for (const auto& [name, value] : wanted["other"].items()) prefixes.insert(name.substr(0, name.find('.')));
  std::string flags;
  for (const std::string& prefix : prefixes) flags += fmt::format(" --allow '{}.*'", prefix);
  return known == there && wanted["other"].is_object() ? flags : "";
}

}  // namespace

std::span<const FunctionField> FunctionFields() { return kFields; }

json FunctionOf(const json& model) {
  json of = json::object();
  for (const FunctionField& field : kFields) {
    const std::string name(field.name);
    const auto stated = model.find(name);
    of[name] = stated != model.end() && !stated->is_null() ? *stated : json::parse(field.fallback);
  }
  of["activation"] = Activation(of["activation"]);
  if (const json& scaling = of["rope_scaling"];
      scaling.is_object() && scaling.value("rope_type", json()) == "default")
    of["rope_scaling"] = nullptr;
  if (of["router_groups"] == 1) of["router_groups"] = of["router_groups_per_token"] = nullptr;
  FillSizes(model, of);
  FillAttention(model, of);
  if (of["position_embedding"] != "rope")
    for (const char* rotary :
         {"rotary_base", "rotary_percent", "rotary_interleaved", "rope_scaling", "layers_without_rope"})
      of[rotary] = nullptr;
  return of;
}

Status SameFunction(const json& model, const json& held, std::string_view holder) {
  const json wanted = FunctionOf(model), there = FunctionOf(held);
  std::vector<std::string> differences;
  for (const FunctionField& field : kFields) {
    const std::string name(field.name);
    AddDifferences(name, wanted[name], there[name], differences);
  }
  if (differences.empty()) return OkStatus();
  const std::string flags = FlagsThatAllow(wanted, there);
  return NotSupported(
      "{} would compute something else: the model's {}{}", holder,
      fmt::format("{}", fmt::join(differences, "; ")),
      flags.empty() ? "" : "; if none of it changes what the model computes, convert it with" + flags);
}

}  // namespace cairn
