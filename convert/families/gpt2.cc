// GPT-2. Linear layers are Conv1D; query, key and value are one matrix with the columns [Q | K | V].
#include "convert/families/families.h"

namespace cairn {

Architecture Gpt2() {
  return {
      .name = "gpt2",
      .class_name = "GPT2LMHeadModel",
      .base_prefix = "transformer.",
      .modules =
          {
              {"transformer.wte", {"embedding.word"}},
              {"transformer.wpe", {"embedding.position"}},
              {"transformer.h.{}.ln_1", {"input_norm"}, kAlways},
              {"transformer.h.{}.attn.c_attn",
               {"attention.query", "attention.key", "attention.value"},
               kAlways,
               Layout::kTransposed},
              {"transformer.h.{}.attn.c_proj", {"attention.output"}, kAlways, Layout::kTransposed},
              {"transformer.h.{}.ln_2", {"post_attention_norm"}, kAlways},
              {"transformer.h.{}.mlp.c_fc", {"mlp.up"}, kAlways, Layout::kTransposed},
              {"transformer.h.{}.mlp.c_proj", {"mlp.down"}, kAlways, Layout::kTransposed},
              {"transformer.ln_f", {"final_norm"}, kAlways},
              {.name = "lm_head", .canonical = {"output"}, .when = "!tied_embeddings"},
          },
      .fields =
          {
              {"num_layers", {"n_layer", "num_hidden_layers"}},
              {"hidden_size", {"n_embd", "hidden_size"}},
              {"num_attention_heads", {"n_head", "num_attention_heads"}},
              {"ffn_hidden_size", {"n_inner"}},
              {"vocab_size", {"vocab_size"}},
              {"max_position_embeddings", {"n_positions", "max_position_embeddings"}},
              {"tied_embeddings", {"tie_word_embeddings"}, true},
              {"layernorm_epsilon", {"layer_norm_epsilon"}, 1e-5},
              {"activation", {"activation_function"}, "gelu_new"},
              {"scale_attn_weights", {"scale_attn_weights"}, true},
              {"attention_scale_by_layer", {"scale_attn_by_inverse_layer_idx"}, false},
          },
      .buffers = {"*.attn.bias", "*.attn.masked_bias"},
      .refusals = {{"add_cross_attention", false}},
      .harmless = {"reorder_and_upcast_attn", "n_ctx"},  // the former: precision
      .config = {{"reorder_and_upcast_attn", false}, {"use_cache", true}},
  };
}

}  // namespace cairn
