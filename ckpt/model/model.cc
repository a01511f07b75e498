// The table is the only list: reading, writing, sizes and function loop over it, and a member without a row
// does not compile. Sizes are bounded before anything is multiplied: products of two of them, and of boxes,
// cannot overflow or exhaust memory. FunctionOf() makes equal functions equal values, so that comparing field
// by field is enough.

#include "ckpt/model/model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace cairn {
namespace {

using nlohmann::json;

constexpr int64_t kMaxHeadBoxes = 1 << 24;  // layers times heads, or experts
constexpr int64_t kMaxElements = int64_t{1} << 59;

constexpr const char* kArchitecture = "architecture";
constexpr const char* kOfNoFamily = "megatron";  // an architecture's text for none

using M = ModelValues;
using S = ModelShape;
constexpr int64_t kLeast = 1;
constexpr bool kRequired = true;

// Differences are reported in this order.
constexpr ModelField kFields[] = {
    {"num_layers", "without multi-token prediction", &M::num_layers, nullptr, &S::layers, kLeast, kRequired},
    {"mtp_layers", "layers of multi-token prediction", &M::mtp_layers, nullptr, &S::mtp_layers, 0},
    {"hidden_size", "width of a layer", &M::hidden_size, nullptr, &S::hidden, kLeast, kRequired},
    {"num_attention_heads", "of queries", &M::num_attention_heads, "null", &S::heads, kLeast, kRequired},
    {"vocab_size", "without padding", &M::vocab_size, nullptr, &S::vocab, kLeast, kRequired},
    {"num_key_value_heads", "left out: those of queries", &M::num_key_value_heads, "null", &S::kv_heads},
    {"head_dim", "left out: hidden_size / num_attention_heads", &M::head_dim, "null", &S::head_dim},
    {"ffn_hidden_size", "left out: 4 * hidden_size", &M::ffn_hidden_size, nullptr, &S::ffn},
    {"max_position_embeddings", "also if they are not learned", &M::max_position_embeddings, nullptr,
     &S::positions},
    {"q_lora_rank", "of latent attention, for queries", &M::q_lora_rank, nullptr, &S::query_rank},
    {"kv_lora_rank", "the same for keys and values", &M::kv_lora_rank, nullptr, &S::key_value_rank},
    {"v_head_dim", "of values; left out: head_dim", &M::v_head_dim, nullptr, &S::value_head_dim},
    {"linear_num_key_heads", "of gated delta nets", &M::linear_num_key_heads, "null", &S::delta_key_heads},
    {"linear_num_value_heads", "the same for values: a multiple", &M::linear_num_value_heads, "null",
     &S::delta_value_heads},
    {"linear_key_head_dim", "elements of such a key", &M::linear_key_head_dim, "null", &S::delta_key_dim},
    {"linear_value_head_dim", "elements of such a value", &M::linear_value_head_dim, "null",
     &S::delta_value_dim},
    {"linear_conv_kernel_dim", "tokens that their convolution sees", &M::linear_conv_kernel_dim, "null",
     &S::convolution},
    {"tied_embeddings", "the word embedding is the output matrix", &M::tied_embeddings, "true"},
    {"embedding_multiplier", "a number or \"sqrt(hidden_size)\"", &M::embedding_multiplier, "null"},
    {"position_embedding", "learned, rope, alibi or none", &M::position_embedding, "\"learned\""},
    {"rotary_base", "theta of the lowest frequency", &M::rotary_base, "10000"},
    {"rotary_percent", "part of a head that is rotated, 0 to 1", &M::rotary_percent, "1"},
    {"qk_rope_head_dim", "rotated by latent attention", &M::qk_rope_head_dim, "null", &S::rotated_dim},
    {"rotary_interleaved", "pairs are neighbours; else halves of the head", &M::rotary_interleaved, "false"},
    {"rope_scaling", "as transformers names it: {\"rope_type\": \"llama3\", \"factor\": 8, ...}",
     &M::rope_scaling, "null"},
    {"layers_without_rope",
     "a list with a 1 for each; N: every N-th; full_attention: those beside layers with a window",
     &M::layers_without_rope, "null"},
    {"sliding_window", "keys that a query sees, its own among them", &M::sliding_window, "null"},
    {"layer_types",
     "sliding_attention, full_attention, or linear_attention (a gated delta net); left out: all slide",
     &M::layer_types, "null"},
    {"residual_multiplier", "factor on what attention and MLP add", &M::residual_multiplier, "1"},
    {"logits_divisor", "the logits are divided by it", &M::logits_divisor, "1"},
    {"normalization", "LayerNorm or RMSNorm", &M::normalization, "\"LayerNorm\""},
    {"layernorm_epsilon", "added to the variance", &M::layernorm_epsilon, "1e-5"},
    {"norm_weight_minus_one", "stored weights of norms are gamma - 1", &M::norm_weight_minus_one, "false"},
    {"residual_post_layernorm", "it is taken behind the norm", &M::residual_post_layernorm, "false"},
    {"parallel_residual", "attention and MLP read the same input", &M::parallel_residual, "false"},
    {"activation",
     "gelu (exact), gelu_new (tanh), relu, relu2 (squared), silu, quick_gelu, swigluoai (GPT-OSS), ...",
     &M::activation, "\"gelu_new\""},
    {"activation_limit", "gate and up are clamped to it", &M::activation_limit, "null"},
    {"gated_mlp", "act(gate) * up", &M::gated_mlp, "false"},
    {"num_experts", "of a mixture's layer; left out: no mixture", &M::num_experts, "null", &S::experts},
    {"moe_ffn_hidden_size", "of an expert", &M::moe_ffn_hidden_size, nullptr, &S::expert_ffn},
    {"shared_expert_ffn_hidden_size", "of the expert that every token visits",
     &M::shared_expert_ffn_hidden_size, nullptr, &S::shared_ffn},
    {"num_experts_per_token", "visited by a token", &M::num_experts_per_token, "null", &S::experts_per_token},
    {"router_score", "of experts: softmax over all, or sigmoid of each", &M::router_score, "\"softmax\""},
    {"router_method", "greedy, group_limited_greedy, noaux_tc; greedy_on_input: scores scale the inputs",
     &M::router_method, "\"greedy\""},
    {"router_scale", "factor on the weights of the visited experts", &M::router_scale, "1"},
    {"router_groups", "of experts; a token visits router_groups_per_token", &M::router_groups, "null"},
    {"router_groups_per_token", "of those groups", &M::router_groups_per_token, "null"},
    {"router_normalizes", "scores are divided by their sum", &M::router_normalizes, "true"},
    {"dense_layers", "the layers that are not mixtures, from 0", &M::dense_layers, "[]"},
    {"attention_scale", "of query times key; left out: 1 / sqrt(head_dim)", &M::attention_scale, "null"},
    {"attention_scale_by_layer", "divided by the layer's, from 1", &M::attention_scale_by_layer, "false"},
    {"attn_logit_softcapping", "cap * tanh(x / cap) before the softmax", &M::attn_logit_softcapping, "null"},
    {"final_logit_softcapping", "the same of the logits", &M::final_logit_softcapping, "null"},
    {"softmax", "vanilla, off-by-one or learnable", &M::softmax, "\"vanilla\""},
    // Other words of config.json, from which the fields above follow.
    {"scale_attn_weights", "false: attention_scale is 1", &M::scale_attn_weights},
    {"query_pre_attn_scalar", "attention_scale is 1 / sqrt of it", &M::query_pre_attn_scalar},
    {"use_sliding_window", "false: no layer has a window", &M::use_sliding_window},
    {"max_window_layers", "the first layers, which see everything", &M::max_window_layers},
    {"mlp_only_layers", "dense_layers", &M::mlp_only_layers},
    {"decoder_sparse_step", "every N-th layer is a mixture", &M::decoder_sparse_step},
    {"first_k_dense_replace", "the first layers, which are dense", &M::first_k_dense_replace},
    {"moe_layers", "the layers that are mixtures", &M::moe_layers},
    {"mlp_layer_types", "dense or sparse, which is a mixture", &M::mlp_layer_types},
    {"n_shared_experts", "width of the shared expert, in experts", &M::n_shared_experts},
    {"qk_nope_head_dim", "head_dim without the rotated elements", &M::qk_nope_head_dim},
    {"layers_with_rope", "a list with a 1 for each", &M::layers_with_rope},
    {"no_rope_interval", "without such a list: every N-th layer does not rotate", &M::no_rope_interval},
    {"full_attention_interval", "every N-th layer has attention, others are delta nets",
     &M::full_attention_interval},
    {"other", "settings of the source that no field here expresses, by their own names", &M::other, "{}"},
};
static_assert(sizeof(ModelValues) == std::size(kFields) * sizeof(json), "each member has a row");

const ModelField* FindField(const std::string& name) {
  const auto found = std::ranges::find(kFields, name, &ModelField::name);
  return found == std::end(kFields) ? nullptr : found;
}

Status CheckProducts(const ModelShape& shape, bool states_head) {
  if (!states_head && shape.hidden % shape.heads != 0)
    return InvalidArgument("the model's {} attention heads do not divide its hidden size {}", shape.heads,
                           shape.hidden);
  if (shape.rotated_dim > shape.head_dim)
    return InvalidArgument("the model's heads of {} elements cannot rotate {}", shape.head_dim,
                           shape.rotated_dim);
  if (shape.heads % shape.kv_heads != 0)
    return InvalidArgument("the model's {} key and value heads do not divide its {} attention heads",
                           shape.kv_heads, shape.heads);
  if (shape.delta_key_heads > 0 && shape.delta_value_heads % shape.delta_key_heads != 0)
    return InvalidArgument("the model's {} key heads of gated delta nets do not divide its {} value heads",
                           shape.delta_key_heads, shape.delta_value_heads);
  if (shape.AllLayers() * shape.delta_value_heads > kMaxHeadBoxes)
    return InvalidArgument("the model has {} layers of {} value heads; is its description damaged?",
                           shape.AllLayers(), shape.delta_value_heads);
  if (shape.AllLayers() > kMaxLayers || shape.AllLayers() * shape.heads > kMaxHeadBoxes)
    return InvalidArgument("the model has {} layers of {} heads; is its description damaged?",
                           shape.AllLayers(), shape.heads);
  if (shape.experts > kMaxHeadBoxes / shape.AllLayers() ||
      shape.experts > kMaxElements / std::max<int64_t>(1, shape.expert_ffn) / shape.hidden)
    return InvalidArgument("the model has {} experts of {} x {} in {} layers; is its description damaged?",
                           shape.experts, shape.expert_ffn, shape.hidden, shape.layers);
  return OkStatus();
}

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

void FillSizes(const Model& model, Model& of) {
  if (of.num_key_value_heads.is_null()) of.num_key_value_heads = of.num_attention_heads;
  const double heads = Number(of.num_attention_heads, 0), hidden = Number(model.hidden_size, 0);
  if (of.head_dim.is_null() && heads >= 1 && hidden >= heads && hidden < 1e15)
    of.head_dim = static_cast<int64_t>(hidden / heads);
}

void FillAttention(const Model& model, Model& of) {
  json& scale = of.attention_scale;
  const double head = Number(of.head_dim, 0);
  if (model.scale_attn_weights == false) scale = 1.0;
  if (const double of_gemma = Number(model.query_pre_attn_scalar, 0); scale.is_null() && of_gemma > 0)
    scale = 1 / std::sqrt(of_gemma);
  if (scale.is_number() && head > 0 && std::abs(scale.get<double>() * std::sqrt(head) - 1) < 1e-6)
    scale = nullptr;
  json &window = of.sliding_window, &types = of.layer_types;
  const auto slides = [](const json& type) { return type == "sliding_attention"; };
  if (types.is_array() && std::ranges::none_of(types, slides)) window = nullptr;
  if (!HasMixers(of) && (window.is_null() || (types.is_array() && std::ranges::all_of(types, slides))))
    types = nullptr;
  if (window.is_null() && types.is_array()) std::ranges::replace_if(types, slides, json("full_attention"));
}

// A list with a 1 for each layer that does not rotate; null if all do.
void FillLayersWithoutRope(const Model& model, Model& of) {
  json& without = of.layers_without_rope;
  const json by = without, &types = model.layer_types;
  const int64_t layers = std::min<int64_t>(IntOf(model.num_layers), kMaxLayers);
  if (by.is_number_integer() && by > 0) {
    without = json::array();
    for (int64_t i = 1; i <= layers; ++i) without.push_back(i % by.get<int64_t>() == 0 ? 1 : 0);
  } else if (by == "full_attention") {
    without = json::array();
    if (!model.sliding_window.is_null() && types.is_array())
      for (const json& type : types) without.push_back(type == by ? 1 : 0);
  }
  const auto rotates = [](const json& layer) { return layer == 0 || layer == false; };
  if (without.is_array() && std::ranges::all_of(without, rotates)) without = nullptr;
}

// transformers' defaults.
void FillYarn(const Model& model, json& scaling) {
  if (!scaling.is_object() || scaling.value("rope_type", json()) != "yarn") return;
  if (scaling.value("mscale", json(1)) == 1 && scaling.value("mscale_all_dim", json(0)) == 0)
    for (const char* key : {"mscale", "mscale_all_dim"}) scaling.erase(key);
  json filled = {{"beta_fast", 32},
                 {"beta_slow", 1},
                 {"truncate", true},
                 {"original_max_position_embeddings", model.max_position_embeddings}};
  filled.update(scaling);
  scaling = std::move(filled);
}

// 8 rather than 8.0.
std::string Text(const json& value) {
  return value.is_number_float() ? fmt::format("{}", value.get<double>()) : value.dump();
}

// "other" by its own names, anything else by its field's.
void AddDifferences(const ModelField& field, const json& wanted, const json& held,
                    std::vector<std::string>& differences) {
  if (wanted == held) return;
  if (field.value != &Model::other || !wanted.is_object() || !held.is_object()) {
    differences.push_back(fmt::format("{} is {}, not {}", field.name, Text(wanted), Text(held)));
    return;
  }
  for (const auto& [key, value] : wanted.items())
    if (held.value(key, json()) != value)
      differences.push_back(fmt::format("{} is {}, which it cannot hold", key, value.dump()));
  for (const auto& [key, value] : held.items())
    if (!wanted.contains(key)) differences.push_back(fmt::format("{} would be {}", key, value.dump()));
}

// " --allow 'args.*'" for each prefix of names in the model's `other`, if nothing else differs.
std::string FlagsThatAllow(const Model& wanted, const Model& there) {
  Model known = wanted;
  known.other = there.other;
  std::set<std::string> prefixes;
  for (const auto& [name, value] : wanted.other.items()) prefixes.insert(name.substr(0, name.find('.')));
  std::string flags;
  for (const std::string& prefix : prefixes) flags += fmt::format(" --allow '{}.*'", prefix);
  return known == there && wanted.other.is_object() ? flags : "";
}

}  // namespace

std::span<const ModelField> ModelFields() { return kFields; }

const ModelField& FieldOf(json ModelValues::*value) {
  return *std::ranges::find(kFields, value, &ModelField::value);
}

Model::Model(const json& stated) : rest(stated) {
  if (!rest.is_object()) rest = json::object();
  for (const ModelField& field : kFields)
    if (const auto found = rest.find(field.name); found != rest.end() && !found->is_null()) {
      this->*field.value = std::move(*found);
      rest.erase(found);
    }
  architecture = FamilyOfText(rest.value(kArchitecture, json()));
  if (architecture) rest.erase(kArchitecture);
}

const json& Model::Get(const std::string& name) const {
  static const json kNull;
  if (const ModelField* field = FindField(name)) return this->*field->value;
  const auto found = rest.find(name);
  return found == rest.end() ? kNull : *found;
}

void Model::Set(const std::string& name, json value) {
  const ModelField* field = FindField(name);
  (field ? this->*field->value : rest[name]) = std::move(value);
}

void Model::Update(const Model& other) {
  for (const ModelField& field : kFields)
    if (!(other.*field.value).is_null()) this->*field.value = other.*field.value;
  if (other.architecture) architecture = other.architecture;
  rest.update(other.rest);
}

bool Model::HasSizes() const {
  return std::ranges::none_of(
      kFields, [this](const ModelField& field) { return field.required && (this->*field.value).is_null(); });
}

void to_json(json& object, const Model& model) {
  object = model.rest;
  for (const ModelField& field : kFields)
    if (!(model.*field.value).is_null()) object[field.name] = model.*field.value;
  if (model.architecture) object[kArchitecture] = TextOfFamily(model.architecture);
}

std::optional<std::string> FamilyOfText(const json& text) {
  if (!text.is_string() || text == "") return std::nullopt;
  return text == kOfNoFamily ? "" : text.get<std::string>();
}

json TextOfFamily(const std::optional<std::string>& family) {
  if (!family) return nullptr;
  return family->empty() ? kOfNoFamily : *family;
}

bool IsMixer(const json& layer_type) {
  return std::ranges::any_of(kMixers, [&](std::string_view mixer) { return layer_type == mixer; });
}

bool HasMixers(const Model& model) {
  return model.layer_types.is_array() && std::ranges::any_of(model.layer_types, IsMixer);
}

int64_t IntOf(const json& value) { return value.is_number_integer() ? value.get<int64_t>() : 0; }

Result<ModelShape> ReadShape(const Model& model) {
  ModelShape shape;
  for (const ModelField& field : kFields) {
    if (field.size == nullptr) continue;
    const json& value = model.*field.value;
    if (value.is_null() && !field.required) continue;
    if (!value.is_number_integer() || value < field.least || value > kMaxModelSize)
      return InvalidArgument("the model's {} is {}; it must be a positive integer, at most {}", field.name,
                             value.is_null() ? "missing" : value.dump(), kMaxModelSize);
    shape.*field.size = value.get<int64_t>();
  }
  shape.kv_heads = shape.KvHeads();
  shape.head_dim = std::max<int64_t>(1, shape.HeadDim());
  shape.ffn = shape.Ffn();
  if (shape.experts > 0 && shape.expert_ffn == 0) shape.expert_ffn = shape.ffn;
  if (shape.experts > 0 && shape.shared_ffn == 0) shape.shared_ffn = shape.ffn;
  shape.tied = IsOn(model.tied_embeddings);
  CAIRN_RETURN_IF_ERROR(CheckProducts(shape, !model.head_dim.is_null()));
  return shape;
}

Status FunctionIsStated(const Model& model) {
  if (!model.rest.contains("hugging_face") || model.rest.contains("function")) return OkStatus();
  return NotSupported(
      "it was imported by an earlier version of Cairn, which did not record everything that determines "
      "what a model computes; import it again with cairn convert --to native");
}

json Llama3Scaling(const json& factor) {
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

Model FunctionOf(const Model& model) {
  Model of;
  for (const ModelField& field : ModelFields()) {
    if (field.fallback == nullptr) continue;
    const json& stated = model.*field.value;
    of.*field.value = stated.is_null() ? json::parse(field.fallback) : stated;
  }
  of.activation = Activation(of.activation);
  if (of.rope_scaling.is_object() && of.rope_scaling.value("rope_type", json()) == "default")
    of.rope_scaling = nullptr;
  if (of.embedding_multiplier == 1) of.embedding_multiplier = nullptr;
  if (of.router_groups == 1) of.router_groups = of.router_groups_per_token = nullptr;
  FillSizes(model, of);
  FillAttention(model, of);
  FillLayersWithoutRope(model, of);
  FillYarn(model, of.rope_scaling);
  if (of.position_embedding != "rope")
    for (const auto rotary : {&Model::rotary_base, &Model::rotary_percent, &Model::rotary_interleaved,
                              &Model::rope_scaling, &Model::layers_without_rope})
      of.*rotary = nullptr;
  return of;
}

Status SameFunction(const Model& model, const Model& held, std::string_view holder) {
  const Model wanted = FunctionOf(model), there = FunctionOf(held);
  std::vector<std::string> differences;
  for (const ModelField& field : ModelFields())
    AddDifferences(field, wanted.*field.value, there.*field.value, differences);
  if (differences.empty()) return OkStatus();
  const std::string flags = FlagsThatAllow(wanted, there);
  return NotSupported(
      "{} would compute something else: the model's {}{}", holder,
      fmt::format("{}", fmt::join(differences, "; ")),
      flags.empty() ? "" : "; if none of it changes what the model computes, convert it with" + flags);
}

}  // namespace cairn
