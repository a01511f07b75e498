// OPT. The table of positions starts with two rows that no position uses. They are a parameter of their own:
// row p of embedding.position is position p, as everywhere else.
#include "convert/families/families.h"

namespace cairn {

Architecture Opt() {
  const std::string layer = "model.decoder.layers.{}.";
  const std::string norm = "layer_norm_elementwise_affine", bias = "enable_bias";
  const auto layer_norm = [&](const std::string& name, const std::string& canonical) {
    return Module{.name = name, .canonical = {canonical}, .bias = norm, .weight = norm};
  };
  return {
      .name = "opt",
      .class_name = "OPTForCausalLM",
      .base_prefix = "model.",
      .modules =
          {
              {"model.decoder.embed_tokens", {"embedding.word"}},
              {"model.decoder.embed_positions", {"embedding.position_offset", "embedding.position"}},
              layer_norm("model.decoder.final_layer_norm", "final_norm"),
              {layer + "self_attn.k_proj", {"attention.key"}, bias},
              {layer + "self_attn.v_proj", {"attention.value"}, bias},
              {layer + "self_attn.q_proj", {"attention.query"}, bias},
              {layer + "self_attn.out_proj", {"attention.output"}, bias},
              layer_norm(layer + "self_attn_layer_norm", "input_norm"),
              {layer + "fc1", {"mlp.up"}, bias},
              {layer + "fc2", {"mlp.down"}, bias},
              layer_norm(layer + "final_layer_norm", "post_attention_norm"),
              {.name = "lm_head", .canonical = {"output"}, .when = "!tied_embeddings"},
          },
      .fields =
          {
              {"num_layers", {"num_hidden_layers"}},
              {"hidden_size", {"hidden_size"}},
              {"num_attention_heads", {"num_attention_heads"}},
              {"ffn_hidden_size", {"ffn_dim"}},
              {"vocab_size", {"vocab_size"}},
              {"max_position_embeddings", {"max_position_embeddings"}},
              {"tied_embeddings", {"tie_word_embeddings"}, true},
              {"activation", {"activation_function"}, "relu"},
              {bias, {"enable_bias"}, true},
              {norm, {"layer_norm_elementwise_affine"}, true},
          },
      .refusals = {{.config = "word_embed_proj_dim", .same_as = "hidden_size"},
                   {"do_layer_norm_before", true},
                   {"_remove_final_layer_norm", false}},
      .model = {{"layernorm_epsilon", 1e-5}},
      .config = {{"do_layer_norm_before", true}, {"use_cache", true}},
  };
}

}  // namespace cairn
