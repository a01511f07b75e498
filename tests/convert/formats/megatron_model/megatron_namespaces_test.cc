// Whole namespaces of the programs' own argument parsers (data/megatron_namespaces.json: of Megatron-LM
// d98e8a6 and Megatron-DeepSpeed 4efb479, after parse_args and validate_args; "llama" has what differs from
// "gpt").
#include "tests/support/megatron_namespaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "convert/formats/megatron_model/megatron_function.h"

namespace cairn {
namespace {

using nlohmann::json;

json FunctionOfNamespace(const json& args) {
  json facts = {{"num_layers", args["num_layers"]},
                {"hidden_size", args["hidden_size"]},
                {"num_attention_heads", args["num_attention_heads"]},
                {"vocab_size", 61},
                {"ffn_hidden_size", args["ffn_hidden_size"]},
                {"max_position_embeddings", args["max_position_embeddings"]},
                {"tied_embeddings", args["untie_embeddings_and_output_weights"] == false}};
  if (args.value("num_key_value_heads", json()).is_number())
    facts["num_key_value_heads"] = args["num_key_value_heads"];
  if (args.value("group_query_attention", false)) facts["num_key_value_heads"] = args["num_query_groups"];
  Model model = facts;
  ReadMegatronFunction(
      args, [](const std::string&) { return false; }, model);
  return model;
}

// Other values of the same type; for null, a switch and a text.
std::vector<json> OthersOf(const json& value) {
  if (value.is_boolean()) return {value == false};
  if (value.is_number()) return {value.get<double>() * 3 + 7};
  if (value.is_string()) return {value.get<std::string>() + "x"};
  return {true, "text"};
}

// The arguments for which another value means another function or is refused; all others are harmless. A
// name and a line break for each.
std::string ArgumentsThatMean(const char* program) {
  std::set<std::string> names;
  for (const char* kind : {"gpt", "llama"}) {
    const json args = MegatronNamespace(program, kind), function = FunctionOfNamespace(args);
    for (const auto& [name, value] : args.items()) {
      for (const json& other : OthersOf(value)) {
        json changed = args;
        changed[name] = other;
        if (FunctionOfNamespace(changed) != function) names.insert(name);
      }
    }
  }
  std::string lines;
  for (const std::string& name : names) lines += name + "\n";
  return lines;
}

std::string Lines(const char* text) {
  std::istringstream words(text);
  std::string lines;
  for (std::string word; words >> word;) lines += word + "\n";
  return lines;
}

TEST(MegatronNamespacesTest, ReadsAllArgumentsAndTheRightFunction) {
  for (const char* program : {"megatron_lm", "megatron_deepspeed"}) {
    const json gpt = FunctionOfNamespace(MegatronNamespace(program, "gpt"));
    EXPECT_FALSE(gpt.contains("other")) << gpt["other"];
    EXPECT_EQ(gpt["architecture"], "gpt2");
    EXPECT_EQ(gpt["activation"], "gelu_new");
    EXPECT_EQ(gpt["layernorm_epsilon"], 1e-5);
    json llama = FunctionOfNamespace(MegatronNamespace(program, "llama"));
    EXPECT_FALSE(llama.contains("other")) << llama["other"];
    const bool core = std::string_view(program) == "megatron_lm";
    const json expected = {{"architecture", "llama"},
                           {"activation", "silu"},
                           {"gated_mlp", true},
                           {"normalization", "RMSNorm"},
                           {"position_embedding", "rope"},
                           {"rotary_base", core ? 500000 : 10000},
                           {"attention_bias", false},
                           {"mlp_bias", false},
                           {"num_key_value_heads", 2}};
    for (const auto& [field, value] : expected.items()) EXPECT_EQ(llama[field], value) << program << field;
    EXPECT_EQ(llama.contains("rope_scaling"), core);
    EXPECT_EQ(llama.value("rope_scaling", json::object()).value("factor", 8.0), 8.0);
  }
}

// Judged one by one from the programs' sources: arguments that are not listed decide how a model is trained,
// cut, stored, logged or served, or act only together with a listed one.
TEST(MegatronNamespacesTest, ArgumentsThatChangeTheFunctionAreMappedOrRefused) {
  EXPECT_EQ(
      ArgumentsThatMean("megatron_lm"),
      Lines("activation_func_clamp_value add_bias_linear add_position_embedding add_qkv_bias "
            "apply_residual_connection_post_layernorm attention_output_gate bias_gelu_fusion "
            "enable_mhc_connections experimental_attention_variant ffn_hidden_size glu_linear_offset "
            "group_query_attention heterogeneous_layers_config_encoded_json heterogeneous_layers_config_path "
            "hidden_size hybrid_layer_pattern hybrid_override_pattern is_hybrid_model layernorm_epsilon "
            "layernorm_zero_centered_gamma linear_attention_freq max_position_embeddings mrope_section "
            "mtp_num_layers multi_latent_attention no_rope_freq normalization num_attention_heads "
            "num_experts num_layers num_query_groups position_embedding_type qk_l2_norm qk_layernorm "
            "quick_geglu rope_scaling_factor rope_type rotary_base rotary_interleaved rotary_percent "
            "softmax_type spec squared_relu swiglu untie_embeddings_and_output_weights use_mup "
            "use_rope_scaling use_rotary_position_embeddings window_size "));
  EXPECT_EQ(
      ArgumentsThatMean("megatron_deepspeed"),
      Lines("add_bias_linear add_position_embedding apply_layernorm_1p "
            "apply_residual_connection_post_layernorm bias_gelu_fusion compression_training ffn_hidden_size "
            "hidden_size layernorm_epsilon max_position_embeddings mlp_type normalization "
            "num_attention_heads num_experts num_key_value_heads num_layers onnx_safe retro_add_retriever "
            "rope_theta rotary_percent squared_relu swiglu untie_embeddings_and_output_weights "
            "use_rotary_position_embeddings "));
}

}  // namespace
}  // namespace cairn
