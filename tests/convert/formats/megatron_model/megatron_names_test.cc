#include "convert/formats/megatron_model/megatron_names.h"

#include <gtest/gtest.h>

#include <climits>

#include "ckpt/model/tensor.h"

namespace cairn {
namespace {

TEST(MegatronNamesTest, ParsesLayerAndModuleInsideAnyWrappers) {
  for (const char* name :
       {"layers.3.self_attention.dense.weight", "language_model.encoder.layers.3.self_attention.dense.weight",
        "module.module.decoder.layers.3.self_attention.dense.weight"}) {
    const auto parsed = ParseMegatronName(name);
    ASSERT_TRUE(parsed) << name;
    EXPECT_EQ(parsed->layer, 3);
    EXPECT_EQ(parsed->name, "self_attention.dense.weight");
  }
}

TEST(MegatronNamesTest, ParsesModulesBeforeAndAfterTheLayers) {
  const auto embedding = ParseMegatronName("language_model.embedding.word_embeddings.weight");
  ASSERT_TRUE(embedding);
  EXPECT_EQ(embedding->layer, kBeforeLayers);
  EXPECT_EQ(embedding->name, "word_embeddings.weight");
  const auto norm = ParseMegatronName("decoder.final_layernorm.bias");
  ASSERT_TRUE(norm);
  EXPECT_EQ(norm->layer, kAfterLayers);
}

// The head's copy of a tied embedding, on the last stage, is the embedding.
TEST(MegatronNamesTest, MapsTheHeadsCopyToTheEmbedding) {
  const auto copy = ParseMegatronName("model.word_embeddings_for_head.weight");
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->layer, kBeforeLayers);
  EXPECT_EQ(copy->name, "word_embeddings.weight");
}

TEST(MegatronNamesTest, LayersOfMultiTokenPredictionAreCountedApart) {
  const char* norm = "mtp.layers.1.final_layernorm.weight";
  EXPECT_FALSE(ParseMegatronName(norm));
  for (const auto& [stored, name] :
       {std::pair(norm, "mtp_final_layernorm.weight"), std::pair("mtp.layers.1.enorm.weight", "enorm.weight"),
        std::pair("mtp.layers.1.transformer_layer.mlp.router.weight", "mlp.router.weight"),
        std::pair("mtp.layers.1.mtp_model_layer.mlp.router.weight", "mlp.router.weight")}) {
    const auto found = ParseMegatronName(stored, /*mtp=*/true);
    ASSERT_TRUE(found) << stored;
    EXPECT_TRUE(found->mtp);
    EXPECT_EQ(found->layer, 1);
    EXPECT_EQ(found->name, name);
  }
}

TEST(MegatronNamesTest, ExpertsHaveTheirNumbersInThreeForms) {
  const auto up = ParseExpertName("decoder.layers.2.mlp.experts.local_experts.3.linear_fc1.weight");
  ASSERT_TRUE(up);
  EXPECT_EQ(up->name.layer, 2);
  EXPECT_EQ(up->name.name, "mlp.experts.experts.linear_fc1.weight");
  EXPECT_EQ(up->expert, 3);
  const auto grouped = ParseExpertName("decoder.layers.2.mlp.experts.linear_fc2.weight11");
  ASSERT_TRUE(grouped);
  EXPECT_EQ(grouped->expert, 11);
  EXPECT_TRUE(grouped->is_down);
  const auto all = ParseExpertName("decoder.layers.2.mlp.experts.weight1");
  ASSERT_TRUE(all);
  EXPECT_EQ(all->name.name, up->name.name);
  EXPECT_FALSE(all->expert);
  for (const char* other :
       {"decoder.layers.2.mlp.linear_fc1.weight", "decoder.layers.2.mlp.experts.weight3",
        "decoder.layers.2.mlp.experts.local_experts.x.linear_fc1.weight", "mlp.experts.linear_fc2.weight1",
        "decoder.layers.2.mlp.experts.linear_fc3.weight1"})
    EXPECT_FALSE(ParseExpertName(other)) << other;
}

TEST(MegatronNamesTest, OtherNamesAreRefused) {
  for (const std::string& name :
       {std::string(), std::string("layers."), std::string("layers.3"), std::string("layers.3."),
        std::string("layers.-1.self_attention.dense.weight"),
        std::string("layers.x.self_attention.dense.weight"),
        "layers." + std::to_string(INT_MAX) + "0.self_attention.dense.weight",
        std::string("model.visual.conv.weight")})
    EXPECT_FALSE(ParseMegatronName(name)) << name;
}

TEST(MegatronNamesTest, ABufferIsNotAParameter) {
  EXPECT_TRUE(IsMegatronBuffer("decoder.layers.0.self_attention._extra_state"));
  EXPECT_TRUE(IsMegatronBuffer("rotary_pos_emb.inv_freq"));
  EXPECT_FALSE(IsMegatronBuffer("decoder.layers.0.self_attention.dense.weight"));
}

}  // namespace
}  // namespace cairn
