#include "runtime/config/checkpoint_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "ckpt/model/canonical_modules.h"

namespace cairn {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TrainConfig LlamaFlags() {
  TrainConfig c;
  c.num_layers = 3;
  c.hidden_size = 32;
  c.num_attention_heads = 4;
  c.group_query_attention = true;
  c.num_query_groups = 2;
  c.kv_channels = 12;
  c.ffn_hidden_size = 48;
  c.vocab_size = 101;
  c.max_position_embeddings = 64;
  c.normalization = "RMSNorm";
  c.use_rotary_position_embeddings = true;
  c.use_rope_scaling = true;
  c.swiglu = c.disable_bias_linear = c.add_qkv_bias = c.untie_embeddings_and_output_weights = true;
  return c;
}

std::vector<std::string> NamesOf(const TrainConfig& config) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : GptSpecs(config)) names.push_back(spec.name);
  return names;
}

CheckpointModel ModelOf(const TrainConfig& config) {
  Result<CheckpointModel> model = ReadCheckpointModel("STEP", FactsOf(*SpecOfFlags(config)), NamesOf(config));
  if (!model.ok()) throw std::runtime_error(model.status().message());
  return *model;
}

// A training with only these flags, from a checkpoint of LlamaFlags().
Status Start(std::vector<std::string_view> given, const std::function<void(TrainConfig&)>& set) {
  TrainConfig config;
  set(config);
  return TakeModel(ModelOf(LlamaFlags()), given, config);
}

TEST(CheckpointModelTest, ReadsTheSavedModel) {
  std::vector<TrainConfig> configs(5);
  configs[0] = LlamaFlags();
  configs[1].vocab_size = configs[2].vocab_size = configs[3].vocab_size = configs[4].vocab_size = 101;
  configs[2].position_embedding_type = "alibi";
  configs[2].embed_layernorm = true;
  configs[3].position_embedding_type = "rope";
  configs[3].rotary_percent = 0.25;
  configs[3].gpt_j_residual = configs[3].no_bias_gelu_fusion = true;
  configs[4].glu_activation = "geglu";
  configs[4].normalization = "RMSNorm";
  configs[4].apply_residual_connection_post_layernorm = configs[4].qk_layernorm = true;
  const char* families[] = {"qwen2", "gpt2", "bloom", "gpt_neox", "megatron"};
  for (size_t i = 0; i < configs.size(); ++i) {
    const CheckpointModel model = ModelOf(configs[i]);
    EXPECT_EQ(TextOfFamily(model.facts.architecture), families[i]);
    ModelSpec there = model.spec, wanted = *SpecOfFlags(configs[i]);
    EXPECT_TRUE(there == wanted) << families[i];
    TrainConfig taken;
    ASSERT_TRUE(TakeModel(model, {}, taken).ok());
    EXPECT_TRUE(SpecOf(taken) == wanted);
    EXPECT_EQ(ModelFacts(taken), model.facts);
    EXPECT_EQ(NamesOf(taken), NamesOf(configs[i]));
    taken.of_checkpoint = nullptr;  // flags say the same
    EXPECT_TRUE(SpecOfFlags(taken)->shape.modules == wanted.shape.modules) << families[i];
    EXPECT_EQ(SpecOfFlags(taken)->activation, wanted.activation);
  }
}

TEST(CheckpointModelTest, AContradictingFlagIsNamedWithBothValues) {
  const Status hidden = Start({"hidden-size"}, [](TrainConfig& c) { c.hidden_size = 64; });
  EXPECT_THAT(hidden.message(), HasSubstr("--hidden-size 64: the model of STEP differs: "));
  EXPECT_THAT(hidden.message(), HasSubstr("hidden_size would be 64, but is 32 in the checkpoint"));
  EXPECT_THAT(Start({"openai-gelu"}, [](TrainConfig& c) { c.openai_gelu = true; }).message(),
              HasSubstr("activation would be \"gelu_new\", but is \"silu\" in the checkpoint"));
  EXPECT_THAT(Start({"disable-bias-linear"}, [](TrainConfig& c) { c.disable_bias_linear = true; }).message(),
              HasSubstr("query_key_value_bias would be false, but is true in the checkpoint"));
  EXPECT_THAT(Start({"rope-scaling-factor", "use-rope-scaling"},
                    [](TrainConfig& c) {
                      c.use_rope_scaling = true;
                      c.rope_scaling_factor = 4;
                    })
                  .message(),
              HasSubstr("rope_scaling would differ"));
  EXPECT_THAT(Start({"position-embedding-type"}, [](TrainConfig& c) { c.position_embedding_type = "spiral"; })
                  .message(),
              HasSubstr("it must be one of learned, rope, alibi, none"));
}

TEST(CheckpointModelTest, EqualFlagsAreAccepted) {
  const TrainConfig flags = LlamaFlags();
  TrainConfig config = flags;
  EXPECT_EQ(TakeModel(ModelOf(flags),
                      std::vector<std::string_view>{"num-layers", "swiglu", "use-rope-scaling", "kv-channels",
                                                    "normalization", "use-rotary-position-embeddings",
                                                    "disable-bias-linear", "add-qkv-bias", "num-query-groups",
                                                    "group-query-attention"},
                      config)
                .message(),
            "");
  EXPECT_EQ(config.num_query_groups, 2);
  EXPECT_EQ(config.seq_length, 64);  // the model has no more positions
}

TEST(CheckpointModelTest, UntrainableModelsAreRefusedByName) {
  const TrainConfig flags = LlamaFlags();
  for (const auto& [name, value, says] : std::initializer_list<std::tuple<const char*, json, const char*>>{
           {"activation", "mish", "the model's activation is 'mish'"},
           {"attn_logit_softcapping", 50.0, "attn_logit_softcapping is 50"},
           {"layers_without_rope", {0, 1}, "layers_without_rope is [0,1]"},
           {"norm_weight_minus_one", true, "norm_weight_minus_one is true"},
           {"other", {{"config.twist", 3}}, "config.twist is 3"},
           {"rope_scaling", {{"rope_type", "su"}, {"factor", 2}}, "rope_scaling is of kind \"su\""},
           {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}, {"bend", 1}}, "bend is 1"},
           {"hidden_size", -4, "the model's hidden_size is -4"},
           {"num_layers", "many", "the model's num_layers is \"many\""}}) {
    Model facts = FactsOf(*SpecOfFlags(flags));
    facts.Set(name, value);
    const auto model = ReadCheckpointModel("STEP", facts, NamesOf(flags));
    ASSERT_FALSE(model.ok()) << name;
    EXPECT_THAT(model.status().message(), HasSubstr(says));
  }
}

TEST(CheckpointModelTest, TensorsMustMatchTheModel) {
  const TrainConfig flags = LlamaFlags();
  const CheckpointModel model = ModelOf(flags);
  std::vector<ParameterSpec> specs = GptSpecs(flags);
  EXPECT_TRUE(CheckParameters(model, specs).ok());
  specs[3].name = "layers.1.attention.sink.weight";
  EXPECT_THAT(CheckParameters(model, specs).message(), HasSubstr("no tensor layers.1.attention.sink"));
  specs = GptSpecs(flags);
  specs[3].shape[0] += 1;
  EXPECT_THAT(CheckParameters(model, specs).message(), HasSubstr("by the model in the manifest"));
  specs = GptSpecs(flags);
  specs.pop_back();
  EXPECT_THAT(CheckParameters(model, specs).message(), HasSubstr("output.weight of the model is missing"));
}

}  // namespace
}  // namespace cairn
