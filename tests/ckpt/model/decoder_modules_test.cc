#include "ckpt/model/decoder_modules.h"

#include <gmock/gmock.h>

#include "ckpt/model/canonical_modules.h"
#include "ckpt/model/shape.h"

namespace cairn {
namespace {

using testing::ElementsAre;

std::vector<std::string> NamesOf(const ModelShape& shape) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : GptSpecs(shape)) names.push_back(spec.name);
  return names;
}

ModelShape Tiny(const DecoderModules& modules) {
  return {.layers = 2, .hidden = 8, .heads = 2, .ffn = 24, .vocab = 50, .positions = 10, .modules = modules};
}

TEST(DecoderModulesTest, GptHasBiasesAndLearnedPositions) {
  ModelShape shape = Tiny({});
  shape.layers = 1;
  EXPECT_THAT(NamesOf(shape),
              ElementsAre("embedding.word.weight", "embedding.position.weight", "layers.0.input_norm.weight",
                          "layers.0.input_norm.bias", "layers.0.attention.query.weight",
                          "layers.0.attention.key.weight", "layers.0.attention.value.weight",
                          "layers.0.attention.query.bias", "layers.0.attention.key.bias",
                          "layers.0.attention.value.bias", "layers.0.attention.output.weight",
                          "layers.0.attention.output.bias", "layers.0.post_attention_norm.weight",
                          "layers.0.post_attention_norm.bias", "layers.0.mlp.up.weight",
                          "layers.0.mlp.up.bias", "layers.0.mlp.down.weight", "layers.0.mlp.down.bias",
                          "final_norm.weight", "final_norm.bias"));
}

TEST(DecoderModulesTest, LlamaHasAGateAndNoBias) {
  ModelShape shape = Tiny(kLlamaModules);
  shape.layers = 1;
  shape.tied = false;
  EXPECT_THAT(
      NamesOf(shape),
      ElementsAre("embedding.word.weight", "layers.0.input_norm.weight", "layers.0.attention.query.weight",
                  "layers.0.attention.key.weight", "layers.0.attention.value.weight",
                  "layers.0.attention.output.weight", "layers.0.post_attention_norm.weight",
                  "layers.0.mlp.gate.weight", "layers.0.mlp.up.weight", "layers.0.mlp.down.weight",
                  "final_norm.weight", "output.weight"));
}

TEST(DecoderModulesTest, LayersOfTwoKindsAreFoundByTheirNames) {
  const std::set<std::string_view> names = {"embedding.word.weight",
                                            "layers.0.mlp.up.weight",
                                            "layers.0.mlp.up.bias",
                                            "layers.1.mlp.up.weight",
                                            "layers.1.mlp.gate.weight",
                                            "layers.2.mlp.up.weight",
                                            "layers.2.mlp.up.bias",
                                            "final_norm.weight",
                                            "output.weight",
                                            "layers.1.rotary.table",
                                            "layers.99999999.mlp.down.weight"};
  ModelShape shape = Tiny(DecoderModules::Among(names));
  shape.layers = 3;
  EXPECT_THAT(NamesOf(shape),
              ElementsAre("embedding.word.weight", "layers.0.mlp.up.weight", "layers.0.mlp.up.bias",
                          "layers.1.mlp.gate.weight", "layers.1.mlp.up.weight", "layers.2.mlp.up.weight",
                          "layers.2.mlp.up.bias", "final_norm.weight"));
  EXPECT_TRUE(shape.modules.Has("mlp.gate") && shape.modules.HasBias("mlp.up"));
  EXPECT_FALSE(shape.modules.layer(0).Has("mlp.gate") || shape.modules.layer(1).HasBias("mlp.up"));
  // 8 * 24 a matrix; a bias of 24 in two layers, a second matrix in one.
  EXPECT_DOUBLE_EQ(3 * shape.LayerParams(), 4 * 192 + 2 * 24);
  EXPECT_DOUBLE_EQ(3 * shape.ActiveLayerMatrices(), 4 * 192);
  EXPECT_DOUBLE_EQ(shape.TotalParams(), 4 * 192 + 2 * 24 + 50 * 8 + 8);
}

TEST(DecoderModulesTest, LayersOfMultiTokenPredictionLieAfterTheOthers) {
  const std::set<std::string_view> names = {"embedding.word.weight", "layers.0.mlp.up.weight",
                                            "mtp.0.projection.weight", "mtp.1.mlp.up.weight",
                                            "mtp.1.mlp.up.bias"};
  ModelShape shape = Tiny(DecoderModules::Among(names));
  shape.layers = 1;
  shape.mtp_layers = 2;
  EXPECT_THAT(NamesOf(shape),
              ElementsAre("embedding.word.weight", "layers.0.mlp.up.weight", "mtp.0.projection.weight",
                          "mtp.1.mlp.up.weight", "mtp.1.mlp.up.bias"));
  for (const ParameterSpec& spec : GptSpecs(shape))
    if (spec.name.starts_with("mtp.")) {
      EXPECT_EQ(spec.layer, kAfterLayers);
      EXPECT_NE(ModuleOfParameter(spec.name), nullptr);
    }
  EXPECT_EQ(SpecOf(*FindCanonicalModule("projection"), false, 1, shape).shape, (Dims{8, 16}));
  EXPECT_DOUBLE_EQ(shape.TotalParams(), 50 * 8 + 192 + 8 * 16 + 192 + 24);
}

TEST(DecoderModulesTest, AModelIsFoundAgainByTheNamesOfItsFirstLayer) {
  for (const DenseModules& dense :
       {DenseModules(), kLlamaModules, DenseModules{.embedding_norm = true, .query_key_norm = true}}) {
    std::set<std::string> names;
    for (const std::string& name : NamesOf(Tiny(dense)))
      if (!name.starts_with("layers.1.")) names.insert(name);
    EXPECT_EQ(DecoderModules::Among({names.begin(), names.end()}), DecoderModules(dense));
  }
}

TEST(DecoderModulesTest, ParametersAreCountedAsInThePapers) {
  const ModelShape gpt{.layers = 1, .hidden = 1024, .heads = 16, .vocab = 1};
  EXPECT_DOUBLE_EQ(gpt.LayerParams(), 12.0 * 1024 * 1024 + 13 * 1024);
  EXPECT_DOUBLE_EQ(gpt.ActiveLayerMatrices(), 12.0 * 1024 * 1024);
  const ModelShape llama7b{.layers = 32,
                           .hidden = 4096,
                           .heads = 32,
                           .ffn = 11008,
                           .vocab = 32000,
                           .tied = false,
                           .modules = kLlamaModules};
  EXPECT_DOUBLE_EQ(llama7b.TotalParams(), 6738415616);
}

}  // namespace
}  // namespace cairn
