// A model as a manifest's `model` describes it: its sizes, and its function apart from the values of its
// weights, in one table of fields.
//
// JSON is read where a manifest, a configuration or arguments are read, and written where one is written; all
// code between names the members. Each value stays as its source spelled it (a manifest keeps 1 and 1.0
// apart); null means that it is not stated.
//
// The same weights are another model under another activation, rotary base or window, and the tensors' names
// and shapes do not show it. Every reader therefore states each field of the function, every writer reads
// back what it would write, and the trainer states its own; SameFunction compares them field by field. A
// field that one side cannot express, and that differs from its default, is refused by name. Settings of a
// source that no reader understands are in `other`, which equals only itself. Not in the table: facts that
// tensors show (biases), and those that act only in training (dropout).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "ckpt/base/status.h"
#include "ckpt/model/shape.h"

namespace cairn {

// A member for each row of the table; ModelFields() has what they mean.
struct ModelValues {
  nlohmann::json num_layers, mtp_layers, hidden_size, num_attention_heads, vocab_size, num_key_value_heads,
      head_dim, ffn_hidden_size, max_position_embeddings, q_lora_rank, kv_lora_rank, v_head_dim,
      linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, linear_value_head_dim,
      linear_conv_kernel_dim;
  nlohmann::json tied_embeddings, embedding_multiplier;
  nlohmann::json position_embedding, rotary_base, rotary_percent, qk_rope_head_dim, rotary_interleaved,
      rope_scaling, layers_without_rope, sliding_window, layer_types, residual_multiplier, logits_divisor;
  nlohmann::json normalization, layernorm_epsilon, norm_weight_minus_one, residual_post_layernorm,
      parallel_residual, activation, activation_limit, gated_mlp;
  nlohmann::json num_experts, moe_ffn_hidden_size, shared_expert_ffn_hidden_size, num_experts_per_token,
      router_score, router_method, router_scale, router_groups, router_groups_per_token, router_normalizes,
      dense_layers;
  nlohmann::json attention_scale, attention_scale_by_layer, attn_logit_softcapping, final_logit_softcapping,
      softmax;
  nlohmann::json scale_attn_weights, query_pre_attn_scalar, use_sliding_window, max_window_layers,
      mlp_only_layers, decoder_sparse_step, first_k_dense_replace, moe_layers, mlp_layer_types,
      n_shared_experts, qk_nope_head_dim, layers_with_rope, no_rope_interval, full_attention_interval;
  nlohmann::json other;

  bool operator==(const ModelValues&) const = default;
};

struct ModelField {
  const char* name;     // in a manifest's `model`
  const char* meaning;  // with its values and unit
  nlohmann::json ModelValues::*value;
  // For a field of the function, as JSON: the value of a model that omits it, which is that of the GPT-2 of
  // `cairn train`. Null: not one of the function.
  const char* fallback = nullptr;
  int64_t ModelShape::*size = nullptr;  // of a size: where ReadShape() puts it
  int64_t least = 1;                    // of a size
  bool required = false;                // of a size
};

// All of them. FORMAT.md, "Model".
std::span<const ModelField> ModelFields();
const ModelField& FieldOf(nlohmann::json ModelValues::*value);
inline const char* NameOf(nlohmann::json ModelValues::*value) { return FieldOf(value).name; }

struct Model : ModelValues {
  Model() = default;
  // A manifest's `model`, an object; any other value states nothing. Implicit, so that JSON is read where a
  // Model is asked for.
  Model(const nlohmann::json& stated);

  // transformers' model_type; empty: known to be of none of its families; nullopt: not stated.
  std::optional<std::string> architecture;
  // Everything else by its name: choices of modules in the words of a family, files that were kept, and
  // values that are stated as null.
  nlohmann::json rest = nlohmann::json::object();

  // By name, for tables that are data; null if it is not stated.
  const nlohmann::json& Get(const std::string& name) const;
  void Set(const std::string& name, nlohmann::json value);
  // Takes all values that `other` states.
  void Update(const Model& other);
  // True if the sizes that every model needs are stated.
  bool HasSizes() const;
  bool operator==(const Model&) const = default;
  // True if nothing is stated.
  bool empty() const { return *this == Model(); }
};
// As a manifest has it.
void to_json(nlohmann::json& object, const Model& model);

// Model::architecture of its text in a manifest, or in Megatron's arguments, and the inverse: null if it is
// not stated. An empty text states nothing.
std::optional<std::string> FamilyOfText(const nlohmann::json& text);
nlohmann::json TextOfFamily(const std::optional<std::string>& family);

// The value, or another one if it is not stated.
inline nlohmann::json Or(const nlohmann::json& value, nlohmann::json otherwise) {
  return value.is_null() ? std::move(otherwise) : value;
}
// Words of layer_types for layers whose token mixer is not attention: gated delta nets.
inline constexpr std::string_view kMixers[] = {"linear_attention"};
bool IsMixer(const nlohmann::json& layer_type);
// True if a layer of the model has one.
bool HasMixers(const Model& model);

// True or a number: a missing switch is off.
inline bool IsOn(const nlohmann::json& value) { return value == true || value.is_number(); }
// An integer; 0 for any other value.
int64_t IntOf(const nlohmann::json& value);

// The sizes of a model; those that may be left out follow from the others. `positions` stays 0 if it does not
// state them. Errors: InvalidArgument naming a missing, ill-typed or absurd field.
Result<ModelShape> ReadShape(const Model& model);

// The version of the table's function that a reader of another system's files has stated in `model.function`.
inline constexpr int kFunctionVersion = 1;
// Errors: NotSupported for a model that was imported before readers stated it.
Status FunctionIsStated(const Model& model);

// BigScience's --glu-activation, and the activation of its gate.
inline constexpr std::pair<std::string_view, std::string_view> kGatedActivations[] = {
    {"swiglu", "silu"}, {"geglu", "gelu"}, {"reglu", "relu"}, {"liglu", "linear"}};
// rope_scaling as Megatron-Core has it, which takes only the factor.
nlohmann::json Llama3Scaling(const nlohmann::json& factor);

// A value for each field of the function, each function in one spelling: "gelu_new" and "gelu_pytorch_tanh"
// are one activation, a scale of 1/sqrt(head_dim) is the default, and a field without effect (a rotary base
// without rotation) is null.
Model FunctionOf(const Model& model);

// Errors: NotSupported naming each field in which `held` computes something other than `model`, and the flag
// that ignores differences in `other` only; `holder` is the name of the program: "Megatron-Core".
Status SameFunction(const Model& model, const Model& held, std::string_view holder);

}  // namespace cairn
