// GPT-NeoX (Pythia). The rows of query_key_value are [heads, 3, head size].
#include "convert/families/families.h"

namespace cairn {

Architecture GptNeoX() {
  const std::string layer = "gpt_neox.layers.{}.";
  return {
      .name = "gpt_neox",
      .class_name = "GPTNeoXForCausalLM",
      .base_prefix = "gpt_neox.",
      .modules =
          {
              {"gpt_neox.embed_in", {"embedding.word"}},
              {layer + "input_layernorm", {"input_norm"}, kAlways},
              {layer + "post_attention_layernorm", {"post_attention_norm"}, kAlways},
              {layer + "attention.query_key_value",
               {"attention.query", "attention.key", "attention.value"},
               "attention_bias",
               Layout::kGrouped},
              {layer + "attention.dense", {"attention.output"}, "attention_bias"},
              {layer + "mlp.dense_h_to_4h", {"mlp.up"}, kAlways},
              {layer + "mlp.dense_4h_to_h", {"mlp.down"}, kAlways},
              {"gpt_neox.final_layer_norm", {"final_norm"}, kAlways},
              {.name = "embed_out", .canonical = {"output"}, .when = "!tied_embeddings", .also = "lm_head"},
          },
      .fields =
          {
              {"num_layers", {"num_hidden_layers"}},
              {"hidden_size", {"hidden_size"}},
              {"num_attention_heads", {"num_attention_heads"}},
              {"ffn_hidden_size", {"intermediate_size"}},
              {"vocab_size", {"vocab_size"}},
              {"max_position_embeddings", {"max_position_embeddings"}},
              {"tied_embeddings", {"tie_word_embeddings"}, false},
              {"layernorm_epsilon", {"layer_norm_eps"}, 1e-5},
              {"activation", {"hidden_act"}, "gelu"},
              {"attention_bias", {"attention_bias"}, true},
              {"parallel_residual", {"use_parallel_residual"}, true},
          },
      .buffers = {"*.attention.bias", "*.attention.masked_bias", "*.attention.rotary_emb.inv_freq"},
      .model = {{"position_embedding", "rope"}, {"rotary_base", 10000}, {"rotary_percent", 0.25}},
      .config = {{"use_cache", true}},
      .rope = true,
  };
}

}  // namespace cairn
