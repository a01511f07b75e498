// BLOOM: ALiBi, a LayerNorm behind the embedding, and query_key_value in rows [heads, 3, head size].
#include "convert/families/families.h"

namespace cairn {

Architecture Bloom() {
  const std::string layer = "transformer.h.{}.";
  return {
      .name = "bloom",
      .class_name = "BloomForCausalLM",
      .base_prefix = "transformer.",
      .modules =
          {
              {"transformer.word_embeddings", {"embedding.word"}},
              {"transformer.word_embeddings_layernorm", {"embedding.norm"}, kAlways},
              {layer + "input_layernorm", {"input_norm"}, kAlways},
              {layer + "self_attention.query_key_value",
               {"attention.query", "attention.key", "attention.value"},
               kAlways,
               Layout::kGrouped},
              {layer + "self_attention.dense", {"attention.output"}, kAlways},
              {layer + "post_attention_layernorm", {"post_attention_norm"}, kAlways},
              {layer + "mlp.dense_h_to_4h", {"mlp.up"}, kAlways},
              {layer + "mlp.dense_4h_to_h", {"mlp.down"}, kAlways},
              {"transformer.ln_f", {"final_norm"}, kAlways},
              {.name = "lm_head", .canonical = {"output"}, .when = "!tied_embeddings"},
          },
      .fields =
          {
              {"num_layers", {"n_layer", "num_hidden_layers"}},
              {"hidden_size", {"hidden_size", "n_embed"}},
              {"num_attention_heads", {"n_head", "num_attention_heads"}},
              {"vocab_size", {"vocab_size"}},
              {"tied_embeddings", {"tie_word_embeddings"}, true},
              {"layernorm_epsilon", {"layer_norm_epsilon"}, 1e-5},
              {"residual_post_layernorm", {"apply_residual_connection_post_layernorm"}, false},
          },
      .harmless = {"pretraining_tp", "slow_but_exact", "seq_length", "masked_softmax_fusion", "skip_bias_add",
                   "skip_bias_add_qkv", "attention_softmax_in_fp32", "bias_dropout_fusion", "offset_alibi",
                   "n_inner", "unk_token_id"},
      .model = {{"position_embedding", "alibi"}, {"activation", "gelu_new"}},
      .config = {{"pretraining_tp", 1}, {"slow_but_exact", false}, {"use_cache", true}},
  };
}

}  // namespace cairn
