// Sizes of a model from the arguments of real trainings: megatron_namespaces.json, of Megatron-LM d98e8a6
// and Megatron-DeepSpeed 4efb479 (hidden size 64, 4 heads; "llama" has 2 groups of them and an FFN of 96).
#include "convert/formats/megatron_model/megatron_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/megatron_namespaces.h"
#include "tests/support/pickled_json.h"

namespace cairn {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// Arguments before an optimizer is made have no padded vocabulary yet; a checkpoint's have one.
json ArgumentsOf(const char* program, const char* kind) {
  json args = MegatronNamespace(program, kind);
  args["padded_vocab_size"] = 128;
  return args;
}

struct ReadGpt : MegatronShape {
  json facts;
};
Result<ReadGpt> Read(const json& args, const std::map<std::string, uint64_t>& shown = {}) {
  ReaderOptions options;
  CAIRN_ASSIGN_OR_RETURN(const MegatronArgs read,
                         ReadMegatronArgs(*PickledJson(args)->root, 3.0, true, options, shown));
  return ReadGpt{read.shape, read.model};
}

TEST(MegatronModelTest, ReadsTheSizesOfTheTraining) {
  for (const char* program : {"megatron_lm", "megatron_deepspeed"}) {
    const auto gpt = Read(ArgumentsOf(program, "gpt"));
    ASSERT_TRUE(gpt.ok()) << gpt.status().message();
    EXPECT_EQ(gpt->layers, 2);
    EXPECT_EQ(gpt->hidden, 64);
    EXPECT_EQ(gpt->heads, 4);
    EXPECT_EQ(gpt->kv_heads, 4) << program;  // num_query_groups is 1 there, but group_query_attention false
    EXPECT_EQ(gpt->head_dim, 16);
    EXPECT_EQ(gpt->vocab_multiple, 128);
    EXPECT_FALSE(gpt->IsGated());
    EXPECT_EQ(gpt->facts["ffn_hidden_size"], 256);
    EXPECT_EQ(gpt->facts["max_position_embeddings"], 32);
    const auto llama = Read(ArgumentsOf(program, "llama"));
    ASSERT_TRUE(llama.ok()) << llama.status().message();
    EXPECT_EQ(llama->kv_heads, 2) << program;
    EXPECT_TRUE(llama->IsGated());
    EXPECT_FALSE(llama->dialect.gate_last);
    EXPECT_EQ(llama->facts["ffn_hidden_size"], 96);
    EXPECT_EQ(llama->facts["num_key_value_heads"], 2);
  }
}

TEST(MegatronModelTest, UsesTheUnpaddedVocabularyIfKnown) {
  EXPECT_EQ(Read(ArgumentsOf("megatron_lm", "gpt"))->vocab, 61);
  EXPECT_EQ(Read(ArgumentsOf("megatron_deepspeed", "gpt"))->vocab, 128);  // vocab_size is None
  json args = ArgumentsOf("megatron_deepspeed", "gpt");
  args["original_vocab_size"] = 100;  // universal_checkpoint_info's
  EXPECT_EQ(Read(args)->vocab, 100);
  args["original_vocab_size"] = 1000;  // more than there are rows
  EXPECT_EQ(Read(args)->vocab, 128);
}

TEST(MegatronModelTest, MissingArgumentsComeFromTensorsOrAreErrors) {
  for (const char* name : {"num_layers", "hidden_size", "num_attention_heads", "padded_vocab_size"}) {
    json args = ArgumentsOf("megatron_lm", "gpt");
    const json value = args[name];
    args[name] = nullptr;
    EXPECT_THAT(Read(args).status().message(), HasSubstr(name));
    EXPECT_TRUE(Read(args, {{name, value.get<uint64_t>()}}).ok()) << name;
    args[name] = -3;
    EXPECT_FALSE(Read(args).ok()) << name;
  }
}

TEST(MegatronModelTest, BigScienceGluHasTheGateLast) {
  json args = ArgumentsOf("megatron_deepspeed", "gpt");
  args["glu_activation"] = "geglu";
  const auto read = Read(args);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_TRUE(read->IsGated() && read->dialect.gate_last);
}

TEST(MegatronModelTest, AHybridThatIsAGptHasHalvesOfLayers) {
  json args = ArgumentsOf("megatron_lm", "llama");
  const auto read = [&](const json& pattern) {
    args["hybrid_layer_pattern"] = pattern;
    return Read(args);
  };
  args["num_layers"] = 6;
  args["spec"] = {"megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"};
  for (const char* pattern : {"*-*-*-", "*-*|-*-"}) {
    const auto hybrid = read(pattern);
    ASSERT_TRUE(hybrid.ok()) << hybrid.status().message();
    EXPECT_EQ(hybrid->layers, 3);
    EXPECT_EQ(hybrid->facts["num_layers"], 3);
    EXPECT_EQ(*hybrid->LayerOf({5, ""}), 2);
    EXPECT_EQ(*hybrid->LayerOf({1, ""}, /*first=*/4), 2);
    EXPECT_EQ(*hybrid->LayerOf({kAfterLayers, ""}), kAfterLayers);
    EXPECT_FALSE(hybrid->facts.contains("other")) << hybrid->facts["other"];
  }
  for (const char* other : {"*-*-", "**--**", "-*-*-*", "M-*-*-", "*-*-*-/*-"})
    EXPECT_THAT(read(other).status().message(), AllOf(HasSubstr(other), HasSubstr("--from dcp")));
  args["no_rope_freq"] = 4;  // every fourth of six
  EXPECT_FALSE(read("*-*-*-").ok());
}

TEST(MegatronModelTest, OtherModelsAreRefused) {
  const auto refusal = [](const char* name, const json& value) {
    json args = ArgumentsOf("megatron_lm", "llama");
    args[name] = value;
    return Read(args).status();
  };
  EXPECT_TRUE(refusal("num_experts", 8).ok());
  EXPECT_TRUE(refusal("multi_latent_attention", true).ok());
  EXPECT_EQ(refusal("num_query_groups", 3).kind(), StatusKind::kInvalidArgument);
  EXPECT_TRUE(refusal("num_experts", 1).ok());
}

}  // namespace
}  // namespace cairn
