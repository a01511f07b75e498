// The families with a table, and one more; and a random config.json of each.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "ckpt/families/families.h"

namespace cairn {

// StableLM, as docs/adding-a-family.md adds it.
inline constexpr const char* kStableLm = R"({
  "like": "llama",
  "name": "stablelm",
  "class": "StableLmForCausalLM",
  "without": ["attention_bias", "mlp_bias", "head_dim"],
  "modules": [
    {"name": "model.layers.{}.self_attn.q_proj", "bias": "query_key_value_bias"},
    {"name": "model.layers.{}.self_attn.k_proj", "bias": "query_key_value_bias"},
    {"name": "model.layers.{}.self_attn.v_proj", "bias": "query_key_value_bias"},
    {"name": "model.layers.{}.input_layernorm", "bias": "always"},
    {"name": "model.layers.{}.post_attention_layernorm", "bias": "always", "when": "!parallel_residual"},
    {"name": "model.norm", "bias": "always"}
  ],
  "fields": [
    {"model": "layernorm_epsilon", "config": "layer_norm_eps", "fallback": 1e-5},
    {"model": "query_key_value_bias", "config": "use_qkv_bias", "fallback": false},
    {"model": "parallel_residual", "config": "use_parallel_residual", "fallback": false}
  ],
  "refusals": [
    {"config": "qk_layernorm", "only": false}
  ],
  "model": {"normalization": "LayerNorm", "rotary_percent": 0.25}
})";

inline std::vector<Family> AllAndOneMore() {
  Families families = Families::BuiltIn();
  EXPECT_EQ(families.Add({{"stablelm.json", nlohmann::json::parse(kStableLm)}}).message(), "");
  return {families.all().begin(), families.all().end()};
}

// A configuration of awkward sizes, with every switch of the table somewhere.
inline nlohmann::json RandomConfig(const Family& architecture, std::mt19937_64& rng) {
  const auto upto = [&](uint64_t n) { return 1 + rng() % n; };
  const uint64_t groups = upto(3), heads = groups * upto(3), head = upto(5);
  const std::map<std::string, uint64_t> sizes = {{"num_layers", upto(4)},
                                                 {"hidden_size", heads * head},
                                                 {"num_attention_heads", heads},
                                                 {"num_key_value_heads", groups},
                                                 {"head_dim", upto(9)},
                                                 {"ffn_hidden_size", upto(40)},
                                                 {"num_experts", upto(4)},
                                                 {"moe_ffn_hidden_size", upto(7)},
                                                 {"shared_expert_ffn_hidden_size", upto(7)},
                                                 {"decoder_sparse_step", upto(2)},
                                                 {"linear_num_key_heads", groups},
                                                 {"linear_num_value_heads", heads},
                                                 {"linear_key_head_dim", upto(5)},
                                                 {"linear_value_head_dim", upto(5)},
                                                 {"linear_conv_kernel_dim", upto(4)},
                                                 {"full_attention_interval", upto(3)},
                                                 {"vocab_size", upto(50)},
                                                 {"max_position_embeddings", upto(20)}};
  nlohmann::json config = {{"model_type", architecture.name}, {"unknown_field", {{"kept", {1, 2}}}}};
  for (const Field& field : architecture.fields) {
    if (sizes.contains(field.name))
      config[field.config[0]] = sizes.at(field.name);
    else if (field.fallback.is_boolean())
      config[field.config[0]] = rng() % 2 == 0;
    else if (!field.fallback.is_null())
      config[field.config[0]] = field.fallback;
  }
  if (architecture.rope) config["rope_parameters"] = {{"rope_theta", 1e6}, {"rope_type", "default"}};
  return config;
}

}  // namespace cairn
