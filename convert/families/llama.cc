// LLaMA and those that differ from it in biases, norms or how matrices are joined: Mistral, Qwen2, Qwen3,
// Phi-3.
//
// RMSNorm, rotary positions in halves (no permutation), a gated MLP, and groups of query heads that share a
// key and a value head.
#include <algorithm>

#include "convert/families/families.h"

namespace cairn {
namespace {

const std::string kLayer = "model.layers.{}.";

Module& ModuleOf(Architecture& architecture, const std::string& name) {
  return *std::ranges::find(architecture.modules, kLayer + name, &Module::name);
}

Field& FieldOf(Architecture& architecture, const std::string& model) {
  return *std::ranges::find(architecture.fields, model, &Field::model);
}

void Remove(Architecture& architecture, const std::string& field) {
  std::erase_if(architecture.fields, [&](const Field& f) { return f.model == field; });
}

// If use_sliding_window is true, the layers from max_window_layers on, or those of layer_types, have a
// window.
void AddWindowByLayer(Architecture& architecture) {
  for (Field field : {Field{"use_sliding_window", {"use_sliding_window"}, false},
                      Field{"sliding_window", {"sliding_window"}, 4096, true},
                      Field{"max_window_layers", {"max_window_layers"}, 28},
                      Field{"layer_types", {"layer_types"}, nullptr, true}})
    architecture.fields.push_back(std::move(field));
}

// Removes the biases of `flag`, which no member of the family has.
void RemoveBiases(Architecture& architecture, const std::string& flag) {
  Remove(architecture, flag);
  for (Module& module : architecture.modules)
    if (module.bias == flag) module.bias = kNever;
}

}  // namespace

Architecture Llama() {
  return {
      .name = "llama",
      .class_name = "LlamaForCausalLM",
      .base_prefix = "model.",
      .modules =
          {
              {"model.embed_tokens", {"embedding.word"}},
              {kLayer + "self_attn.q_proj", {"attention.query"}, "attention_bias"},
              {kLayer + "self_attn.k_proj", {"attention.key"}, "attention_bias"},
              {kLayer + "self_attn.v_proj", {"attention.value"}, "attention_bias"},
              {kLayer + "self_attn.o_proj", {"attention.output"}, "attention_bias"},
              {kLayer + "mlp.gate_proj", {"mlp.gate"}, "mlp_bias"},
              {kLayer + "mlp.up_proj", {"mlp.up"}, "mlp_bias"},
              {kLayer + "mlp.down_proj", {"mlp.down"}, "mlp_bias"},
              {kLayer + "input_layernorm", {"input_norm"}},
              {kLayer + "post_attention_layernorm", {"post_attention_norm"}},
              {"model.norm", {"final_norm"}},
              {.name = "lm_head", .canonical = {"output"}, .when = "!tied_embeddings"},
          },
      .fields =
          {
              {"num_layers", {"num_hidden_layers"}},
              {"hidden_size", {"hidden_size"}},
              {"num_attention_heads", {"num_attention_heads"}},
              {"num_key_value_heads", {"num_key_value_heads"}},
              {"head_dim", {"head_dim"}},
              {"ffn_hidden_size", {"intermediate_size"}},
              {"vocab_size", {"vocab_size"}},
              {"max_position_embeddings", {"max_position_embeddings"}},
              {"tied_embeddings", {"tie_word_embeddings"}, false},
              {"layernorm_epsilon", {"rms_norm_eps"}, 1e-6},
              {"activation", {"hidden_act"}, "silu"},
              {"attention_bias", {"attention_bias"}, false},
              {"mlp_bias", {"mlp_bias"}, false},
          },
      .buffers = {"*.rotary_emb.inv_freq"},
      .harmless = {"pretraining_tp"},
      .model = {{"normalization", "RMSNorm"},
                {"gated_mlp", true},
                {"position_embedding", "rope"},
                {"rotary_base", 10000}},
      .config = {{"use_cache", true}},
      .rope = true,
  };
}

Architecture Mistral() {
  Architecture mistral = Llama();
  mistral.name = "mistral";
  mistral.class_name = "MistralForCausalLM";
  RemoveBiases(mistral, "attention_bias");
  RemoveBiases(mistral, "mlp_bias");
  FieldOf(mistral, "num_key_value_heads").fallback = 8;
  mistral.fields.push_back({"sliding_window", {"sliding_window"}, 4096, true});
  return mistral;
}

// Biases on query, key and value only.
Architecture Qwen2() {
  Architecture qwen = Llama();
  qwen.name = "qwen2";
  qwen.class_name = "Qwen2ForCausalLM";
  RemoveBiases(qwen, "attention_bias");
  RemoveBiases(qwen, "mlp_bias");
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"})
    ModuleOf(qwen, name).bias = kAlways;
  AddWindowByLayer(qwen);
  return qwen;
}

// A norm of each query and key head, before rotation.
Architecture Qwen3() {
  Architecture qwen = Llama();
  qwen.name = "qwen3";
  qwen.class_name = "Qwen3ForCausalLM";
  RemoveBiases(qwen, "mlp_bias");
  FieldOf(qwen, "head_dim").fallback = 128;
  const auto behind = std::ranges::find(qwen.modules, kLayer + "mlp.gate_proj", &Module::name);
  qwen.modules.insert(behind, {{kLayer + "self_attn.q_norm", {"attention.query_norm"}},
                               {kLayer + "self_attn.k_norm", {"attention.key_norm"}}});
  AddWindowByLayer(qwen);
  return qwen;
}

// Norms before and after each block; their stored weights are gamma - 1.
Architecture Gemma2() {
  Architecture gemma = Llama();
  gemma.name = "gemma2";
  gemma.class_name = "Gemma2ForCausalLM";
  RemoveBiases(gemma, "mlp_bias");
  FieldOf(gemma, "head_dim").fallback = 256;
  FieldOf(gemma, "tied_embeddings").fallback = true;
  FieldOf(gemma, "activation") = {"activation", {"hidden_activation", "hidden_act"}, "gelu_pytorch_tanh"};
  ModuleOf(gemma, "post_attention_layernorm").canonical = {"attention.output_norm"};
  gemma.modules.insert(std::ranges::find(gemma.modules, "model.norm", &Module::name),
                       {{kLayer + "pre_feedforward_layernorm", {"post_attention_norm"}},
                        {kLayer + "post_feedforward_layernorm", {"mlp.output_norm"}}});
  for (const char* field : {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"})
    gemma.fields.push_back({field, {field}});
  gemma.fields.push_back({"sliding_window", {"sliding_window"}, 4096, true});
  gemma.fields.push_back({"layer_types", {"layer_types"}, nullptr, true});
  gemma.model["norm_weight_minus_one"] = true;
  gemma.model["embedding_multiplier"] = "sqrt(hidden_size)";
  gemma.harmless = {"cache_implementation", "hidden_act"};
  return gemma;
}

// Query, key and value are one matrix [Q; K; V], gate and up another.
Architecture Phi3() {
  Architecture phi = Llama();
  phi.name = "phi3";
  phi.class_name = "Phi3ForCausalLM";
  for (const char* field : {"attention_bias", "mlp_bias", "head_dim"}) Remove(phi, field);
  FieldOf(phi, "layernorm_epsilon").fallback = 1e-5;
  phi.fields.push_back({"sliding_window", {"sliding_window"}, nullptr, true});
  phi.model["rotary_percent"] = 1.0;
  phi.config["pad_token_id"] = nullptr;  // transformers' own default is beyond small vocabularies
  phi.modules = {
      {"model.embed_tokens", {"embedding.word"}},
      {kLayer + "self_attn.o_proj", {"attention.output"}},
      {kLayer + "self_attn.qkv_proj", {"attention.query", "attention.key", "attention.value"}},
      {kLayer + "mlp.gate_up_proj", {"mlp.gate", "mlp.up"}},
      {kLayer + "mlp.down_proj", {"mlp.down"}},
      {kLayer + "input_layernorm", {"input_norm"}},
      {kLayer + "post_attention_layernorm", {"post_attention_norm"}},
      {"model.norm", {"final_norm"}},
      {.name = "lm_head", .canonical = {"output"}, .when = "!tied_embeddings"},
  };
  return phi;
}

}  // namespace cairn
