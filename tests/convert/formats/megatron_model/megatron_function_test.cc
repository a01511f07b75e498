#include "convert/formats/megatron_model/megatron_function.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "ckpt/families/families.h"
#include "ckpt/families/hugging_face_config.h"

namespace cairn {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json Llama() {
  return {{"architecture", "llama"},    {"num_layers", 2},
          {"hidden_size", 32},          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},   {"head_dim", 8},
          {"ffn_hidden_size", 48},      {"vocab_size", 101},
          {"tied_embeddings", false},   {"layernorm_epsilon", 1e-6},
          {"normalization", "RMSNorm"}, {"gated_mlp", true},
          {"activation", "silu"},       {"position_embedding", "rope"},
          {"rotary_base", 500000},      {"max_position_embeddings", 64}};
}
json Gpt2() {
  return {{"architecture", "gpt2"},   {"num_layers", 2},          {"hidden_size", 32},
          {"num_attention_heads", 4}, {"ffn_hidden_size", 128},   {"vocab_size", 101},
          {"tied_embeddings", true},  {"activation", "gelu_new"}, {"max_position_embeddings", 64}};
}

// The sizes and switches that a writer makes of shapes and names.
json SizesOf(const json& model) {
  const bool llama = model["architecture"] != "gpt2";
  return {{"num_layers", 2},
          {"hidden_size", 32},
          {"num_attention_heads", model["num_attention_heads"]},
          {"num_query_groups", model.value("num_key_value_heads", model["num_attention_heads"])},
          {"kv_channels", model.value("head_dim", json(32 / model["num_attention_heads"].get<int>()))},
          {"untie_embeddings_and_output_weights", model["tied_embeddings"] == false},
          {"add_bias_linear", !llama},
          {"add_qkv_bias", !llama}};
}

Status Write(const json& model, MegatronProgram program) {
  json args = SizesOf(model);
  AddFunctionArguments(model, program, args);
  return CheckFunctionArguments(model, program, args).status();
}

Status WriteConfig(const json& model) {
  const Family& family = *FindFamily(model["architecture"]);
  const Result<json> config = ConfigOfModel(family, model, Dtype::kF32);
  return config.ok() ? CheckConfigFunction(family, model, *config) : config.status();
}

// Another value of a field, and the formats that can store it.
struct Case {
  std::string field;
  json model;  // of which it is a variant
  json value;
  bool core, deepspeed, hugging_face;
};

const json kLlama3 = {{"rope_type", "llama3"},
                      {"factor", 8.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 8192}};
json With(json object, const char* key, const json& value) {
  object[key] = value;
  return object;
}

std::vector<Case> Cases() {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const json linear = {{"rope_type", "linear"}, {"factor", 4.0}};
  const json mistral = With(Llama(), "architecture", "mistral"), phi3 = With(Llama(), "architecture", "phi3");
  const json windowed = With(mistral, "sliding_window", 5);
  return {
      {"num_attention_heads", Gpt2(), 8, true, true, true},
      {"num_key_value_heads", Llama(), 1, true, true, true},
      {"num_key_value_heads", Gpt2(), 2, true, true, false},  // transformers' GPT-2 has no groups
      {"head_dim", Llama(), 16, true, true, true},
      {"tied_embeddings", Llama(), true, true, true, true},
      {"embedding_multiplier", Llama(), 2.0, false, false, false},
      {"position_embedding", Gpt2(), "alibi", false, true, false},
      {"position_embedding", Gpt2(), "none", false, false, false},
      {"rotary_base", Llama(), 300, true, true, true},
      {"rotary_percent", Llama(), 0.5, true, true, false},
      {"rotary_percent", phi3, 0.5, true, true, true},
      {"rotary_interleaved", Llama(), true, true, false, false},
      {"rope_scaling", Llama(), kLlama3, true, false, true},
      {"rope_scaling", Llama(), With(kLlama3, "original_max_position_embeddings", 16), false, false, true},
      {"rope_scaling", Llama(), With(kLlama3, "low_freq_factor", 2), false, false, true},
      {"rope_scaling", Llama(), linear, true, false, true},
      {"rope_scaling", Llama(), yarn, true, false, true},
      {"layers_without_rope", Llama(), json{0, 1}, true, false, false},
      {"sliding_window", Llama(), 5, true, false, false},
      {"sliding_window", mistral, 5, true, false, true},
      {"layer_types", windowed, json{"sliding_attention", "full_attention"}, true, false, false},
      {"layer_types", Llama(), json{"linear_attention", "full_attention"}, false, false, false},
      {"linear_num_key_heads", Llama(), 2, false, false, false},
      {"linear_num_value_heads", Llama(), 2, false, false, false},
      {"linear_key_head_dim", Llama(), 2, false, false, false},
      {"linear_value_head_dim", Llama(), 2, false, false, false},
      {"linear_conv_kernel_dim", Llama(), 2, false, false, false},
      {"normalization", Gpt2(), "RMSNorm", true, true, false},
      {"layernorm_epsilon", Gpt2(), 0.3, true, true, true},
      {"norm_weight_minus_one", Llama(), true, true, false, false},
      {"residual_post_layernorm", Gpt2(), true, false, true, false},
      {"parallel_residual", Gpt2(), true, false, false, false},
      {"activation", Gpt2(), "gelu", true, true, true},
      {"activation", Gpt2(), "relu2", true, true, true},
      {"activation", Gpt2(), "relu", false, false, true},
      {"activation", Gpt2(), "quick_gelu", false, false, true},
      {"activation", Llama(), "gelu", false, false, true},
      {"activation", Llama(), "swigluoai", true, false, true},
      {"activation_limit", Llama(), 7.0, true, false, false},
      {"gated_mlp", Gpt2(), true, false, false, false},
      {"attention_scale", Gpt2(), 1.0, true, false, false},
      {"attention_scale", Llama(), 0.5, true, false, false},
      {"attention_scale_by_layer", Gpt2(), true, false, false, true},
      {"attn_logit_softcapping", Llama(), 50.0, false, false, false},
      {"final_logit_softcapping", Llama(), 30.0, false, false, false},
      {"softmax", Gpt2(), "learnable", true, false, false},
      {"residual_multiplier", Llama(), 0.5, false, false, false},
      {"logits_divisor", Llama(), 8.0, false, false, false},
      {"qk_rope_head_dim", Llama(), 2, false, false, false},
      {"num_experts", Llama(), 4, false, false, false},
      {"num_experts_per_token", Llama(), 2, false, false, false},
      {"router_score", Llama(), "sigmoid", false, false, false},
      {"router_method", Llama(), "noaux_tc", false, false, false},
      {"router_scale", Llama(), 2.5, false, false, false},
      {"router_groups", Llama(), 4, false, false, false},
      {"router_groups_per_token", Llama(), 2, false, false, false},
      {"router_normalizes", Llama(), false, false, false, false},
      {"dense_layers", Llama(), json{0}, false, false, false},
      {"other", Gpt2(), json{{"config.logits_are_cubed", 3}}, false, false, false},
  };
}

// Kept, or refused by the field's name; nothing in between.
void ExpectHeld(const Status& status, bool held, const Case& row, const char* writer) {
  const std::string what = row.field + " = " + row.value.dump() + ", " + writer;
  EXPECT_EQ(status.ok(), held) << what << ": " << status.message();
  if (status.ok()) return;
  const std::string name = row.field == "other" ? "config.logits_are_cubed" : row.field;
  // Shown by its own name, or by that of a related field.
  const std::map<std::string, std::string> also = {{"gated_mlp", "activation"},
                                                   {"rotary_percent", "partial_rotary_factor"}};
  const auto other = also.find(name);
  EXPECT_THAT(status.message(),
              testing::AnyOf(HasSubstr(name + " is "),
                             HasSubstr((other == also.end() ? name : other->second) + " is ")))
      << what;
}

TEST(ModelFunctionTest, EveryWriterKeepsOrRefusesEachField) {
  for (const Case& row : Cases()) {
    json model = row.model;
    EXPECT_TRUE(Write(model, MegatronProgram::kCore).ok() || row.field == "layer_types");
    model[row.field] = row.value;
    ExpectHeld(Write(model, MegatronProgram::kCore), row.core, row, "Megatron-Core");
    ExpectHeld(Write(model, MegatronProgram::kDeepSpeed), row.deepspeed, row, "Megatron-DeepSpeed");
    ExpectHeld(WriteConfig(model), row.hugging_face, row, "transformers");
  }
}

TEST(ModelFunctionTest, ComparesEveryField) {
  const std::vector<Case> cases = Cases();
  for (const ModelField& field : ModelFields()) {
    if (field.fallback == nullptr) continue;
    const auto row = std::ranges::find(cases, std::string(field.name), &Case::field);
    ASSERT_NE(row, cases.end()) << field.name;
    json changed = row->model;
    changed[row->field] = row->value;
    EXPECT_FALSE(SameFunction(changed, row->model, "it").ok()) << field.name;
    EXPECT_FALSE(SameFunction(row->model, changed, "it").ok() && field.value != &Model::other) << field.name;
    EXPECT_TRUE(SameFunction(changed, changed, "it").ok()) << field.name;
  }
}

TEST(ModelFunctionTest, EquivalentSpellingsAreEqual) {
  const auto same = [](const json& model, const char* field, const json& a, const json& b) {
    return SameFunction(With(model, field, a), With(model, field, b), "it").ok();
  };
  EXPECT_TRUE(same(Gpt2(), "activation", "gelu_pytorch_tanh", "gelu_new"));
  EXPECT_TRUE(same(Llama(), "activation", "swish", "silu"));
  EXPECT_TRUE(same(Llama(), "rope_scaling", json{{"rope_type", "default"}}, nullptr));
  EXPECT_TRUE(same(Gpt2(), "rotary_base", 10000, 500));  // nothing is rotated
  EXPECT_TRUE(same(Llama(), "attention_scale", 1 / std::sqrt(8.0), nullptr));
  EXPECT_TRUE(same(Llama(), "query_pre_attn_scalar", 8, nullptr));
  EXPECT_TRUE(same(With(Llama(), "sliding_window", 4), "layer_types",
                   json{"sliding_attention", "sliding_attention"}, nullptr));
  EXPECT_FALSE(same(Gpt2(), "activation", "gelu", "gelu_new"));
}

// The defaults of megatron-core and Megatron-DeepSpeed, and one more argument.
json ReadArguments(const json& more, const json& of = {}, const std::vector<std::string>& allow = {}) {
  json args = {{"num_layers", 2},
               {"hidden_size", 32},
               {"num_attention_heads", 4},
               {"add_bias_linear", true},
               {"position_embedding_type", "learned_absolute"},
               {"bias_gelu_fusion", true},
               {"lr", 3e-4},
               {"tokenizer_type", "GPT2BPETokenizer"},
               {"mlp_type", "standard"},
               {"num_experts", json::array({1})}};
  args.update(of.is_object() ? of : json::object());
  args.update(more.is_object() ? more : json::object());
  Model facts = json{{"num_layers", 2},        {"hidden_size", 32},      {"num_attention_heads", 4},
                     {"vocab_size", 101},      {"ffn_hidden_size", 128}, {"max_position_embeddings", 64},
                     {"tied_embeddings", true}};
  const auto allowed = [&](const std::string& name) { return std::ranges::count(allow, name) > 0; };
  ReadMegatronFunction(args, allowed, facts);
  return facts;
}
const json kSwiGlu = {{"swiglu", true},
                      {"add_bias_linear", false},
                      {"normalization", "RMSNorm"},
                      {"position_embedding_type", "rope"}};

TEST(MegatronFunctionTest, GeluFusedWithItsBiasIsTheTanhForm) {
  EXPECT_EQ(ReadArguments({})["activation"], "gelu_new");
  EXPECT_EQ(ReadArguments({{"bias_gelu_fusion", false}})["activation"], "gelu");
  EXPECT_EQ(ReadArguments({{"add_bias_linear", false}})["activation"], "gelu");
  EXPECT_EQ(ReadArguments({{"onnx_safe", true}})["activation"], "gelu");
  EXPECT_EQ(ReadArguments({{"openai_gelu", true}, {"bias_gelu_fusion", false}})["activation"], "gelu_new");
  EXPECT_EQ(ReadArguments({{"squared_relu", true}})["activation"], "relu2");
  EXPECT_EQ(ReadArguments({{"glu_activation", "geglu"}})["activation"], "gelu");
}

TEST(MegatronFunctionTest, ReadsThePositionsOfEachFork) {
  EXPECT_EQ(ReadArguments({{"rotary_base", 300}}, kSwiGlu)["rotary_base"], 300);
  EXPECT_EQ(ReadArguments({{"rope_theta", 300}}, kSwiGlu)["rotary_base"], 300);  // Megatron-DeepSpeed's
  EXPECT_EQ(ReadArguments({{"rotary_seq_len_interpolation_factor", 4}}, kSwiGlu)["rope_scaling"],
            json({{"rope_type", "linear"}, {"factor", 4}}));
  EXPECT_EQ(ReadArguments({{"use_rope_scaling", true}}, kSwiGlu)["rope_scaling"], kLlama3);
  EXPECT_EQ(ReadArguments({{"window_size", {4, 0}}}, kSwiGlu)["sliding_window"], 5);
  EXPECT_FALSE(ReadArguments({{"window_size", {-1, 0}}}, kSwiGlu).contains("sliding_window"));
  EXPECT_EQ(ReadArguments({{"window_size", {4, 0}}, {"window_attn_skip_freq", 2}}, kSwiGlu)["layer_types"],
            json({"sliding_attention", "full_attention"}));
  EXPECT_EQ(ReadArguments({{"normalization", "rmsnorm"}})["normalization"], "RMSNorm");
}

TEST(MegatronFunctionTest, TakesTheRecordedOrTheComputedFamily) {
  EXPECT_EQ(ReadArguments({})["architecture"], "gpt2");
  EXPECT_EQ(ReadArguments({}, kSwiGlu)["architecture"], "llama");
  EXPECT_EQ(ReadArguments({{"cairn_architecture", "mistral"}}, kSwiGlu)["architecture"], "mistral");
  EXPECT_EQ(ReadArguments({{"cairn_architecture", "phi3"}}, kSwiGlu)["architecture"], "phi3");
  EXPECT_EQ(ReadArguments({{"window_size", {4, 0}}}, kSwiGlu)["architecture"], "mistral");
  EXPECT_EQ(ReadArguments({{"rotary_percent", 0.5}}, kSwiGlu)["architecture"], "phi3");
  EXPECT_EQ(ReadArguments({{"add_qkv_bias", true}}, kSwiGlu)["architecture"], "qwen2");
  EXPECT_EQ(ReadArguments({{"qk_layernorm", true}}, kSwiGlu)["architecture"], "qwen3");
  EXPECT_EQ(ReadArguments({{"position_embedding_type", "rope"}})["architecture"], "gpt_neox");
  EXPECT_EQ(ReadArguments({{"position_embedding_type", "alibi"}})["architecture"], "bloom");
  EXPECT_EQ(ReadArguments({{"normalization", "RMSNorm"}})["architecture"], "megatron");
  // The right tensors, but another function: its writer refuses by the field's name.
  EXPECT_EQ(ReadArguments({{"rotary_interleaved", true}}, kSwiGlu)["architecture"], "ernie4_5");
  const json interleaved = ReadArguments({{"rotary_interleaved", true}, {"window_size", {4, 0}}}, kSwiGlu);
  EXPECT_EQ(interleaved["architecture"], "llama");
  EXPECT_THAT(WriteConfig(interleaved).message(), HasSubstr("rotary_interleaved is true"));
}

TEST(MegatronFunctionTest, NamesUnknownArgumentsUnlessHarmlessOrUnset) {
  EXPECT_FALSE(
      ReadArguments({{"recompute_granularity", "selective"}, {"a_fork_of_ours", false}}).contains("other"));
  for (const auto& [name, value] : std::map<std::string, json>{{"attention_output_gate", true},
                                                               {"num_experts", json::array({8})},
                                                               {"glu_linear_offset", 0.5},
                                                               {"a_fork_of_ours", "on"}}) {
    const json facts = ReadArguments({{name, value}});
    EXPECT_EQ(facts["other"]["args." + name], value) << name;
    EXPECT_THAT(WriteConfig(facts).message(), HasSubstr("args." + name)) << name;
    EXPECT_THAT(Write(facts, MegatronProgram::kCore).message(), HasSubstr("args." + name)) << name;
  }
  EXPECT_FALSE(ReadArguments({{"a_fork_of_ours", "on"}}, {}, {"args.a_fork_of_ours"}).contains("other"));
  const json yarn = {{"position_embedding_type", "yarn"}, {"mscale", 0.7}};
  EXPECT_EQ(ReadArguments(yarn, kSwiGlu)["other"], json({{"args.mscale", 0.7}}));
}

TEST(MegatronFunctionTest, LatentAttentionRotatesNeighboursAndIsScaledByYarn) {
  json args = {{"multi_latent_attention", true},
               {"position_embedding_type", "rope"},
               {"qk_head_dim", 6},
               {"qk_pos_emb_head_dim", 4},
               {"kv_lora_rank", 8},
               {"v_head_dim", 10},
               {"mscale", 0.7}};
  const json facts = ReadArguments(args);
  EXPECT_EQ(facts["head_dim"], 10);
  EXPECT_EQ(facts["qk_nope_head_dim"], 6);
  EXPECT_EQ(facts["position_embedding"], "rope");
  EXPECT_EQ(facts["rotary_interleaved"], true);
  EXPECT_FALSE(facts.contains("q_lora_rank"));
  const json yarn = {{"rope_type", "yarn"}, {"factor", 40},   {"original_max_position_embeddings", 4096},
                     {"beta_fast", 32},     {"beta_slow", 1}, {"mscale", 0.7},
                     {"mscale_all_dim", 0}};
  EXPECT_EQ(facts["rope_scaling"], yarn);
  json written = {{"multi_latent_attention", true}};
  AddFunctionArguments(facts, MegatronProgram::kCore, written);
  EXPECT_EQ(written["rotary_interleaved"], false);  // Megatron refuses true
  EXPECT_EQ(written["rope_type"], "yarn");
  EXPECT_EQ(written["mscale"], 0.7);
  args["rope_type"] = "rope";
  EXPECT_FALSE(ReadArguments(args).contains("rope_scaling"));
  args["position_embedding_type"] = "learned_absolute";
  EXPECT_TRUE(ReadArguments(args)["other"].contains("args.position_embedding_type"));
}

TEST(ModelFunctionTest, UnknownKeysOfConfigJsonAreNamed) {
  json config = *ConfigOfModel(*FindFamily("llama"), Llama(), Dtype::kF32);
  config.update(
      {{"initializer_range", 0.02}, {"attention_dropout", 0.1}, {"_name_or_path", "x"}, {"new", false}});
  const Family& family = *FindFamily("llama");
  EXPECT_FALSE(ModelOfConfig(family, config)->other.is_object());
  config["residual_multiplier"] = 0.22;
  const json model = *ModelOfConfig(family, config);
  EXPECT_EQ(model["other"], json({{"config.residual_multiplier", 0.22}}));
  EXPECT_THAT(Write(model, MegatronProgram::kCore).message(),
              HasSubstr("config.residual_multiplier is 0.22"));
  EXPECT_TRUE(CheckConfigFunction(family, model, config).ok());  // its own file keeps it
  config = *ConfigOfModel(*FindFamily("llama"), Llama(), Dtype::kF32);
  config["rope_parameters"]["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(ModelOfConfig(family, config).status().message(), HasSubstr("partial_rotary_factor is 0.5"));
}

}  // namespace
}  // namespace cairn
