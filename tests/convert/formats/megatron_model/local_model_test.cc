// Names and layer indices of Megatron-DeepSpeed's pipelines, as in files of the two forks:
// BigScience's counts functions around the transformer's layers, deepspeedai's does not.
#include "convert/formats/megatron_model/local_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/make_step.h"
#include "tests/support/open_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

class LocalModelTest : public testing::Test {
 protected:
  Result<LocalModel> Plan(const StepRecipe& recipe, const Topology& topology) {
    const TempDir temp(TempDir::Place::kMemory);
    EXPECT_TRUE(MakeStep(Fs(), temp.path(), recipe).ok());
    const auto step = Open(temp.path());
    CAIRN_ASSIGN_OR_RETURN(const TrainingTensors tensors, ChooseTrainingTensors(*step, std::nullopt));
    return LocalModelOf(*step, tensors, topology);
  }
  static StepRecipe Gpt(bool tied) { return RecipeOf({.layers = 4, .tied = tied}, {}); }
  // BLOOM: attention with ALiBi, so without position embeddings.
  static StepRecipe Bloom() {
    StepRecipe recipe = Gpt(true);
    recipe.model["position_embedding"] = "alibi";
    recipe.model["architecture"] = "bloom";
    std::erase_if(recipe.specs, [](const ParameterSpec& s) { return s.name == "embedding.position.weight"; });
    return recipe;
  }
};

std::vector<std::string> NamesOf(const std::vector<LocalTensor>& held) {
  std::vector<std::string> names;
  for (const LocalTensor& tensor : held) names.push_back(tensor.name);
  return names;
}

std::vector<int> LayersOf(const std::vector<LocalTensor>& held) {
  std::vector<int> layers;
  for (const LocalTensor& tensor : held) layers.push_back(tensor.pipeline_layer);
  std::ranges::sort(layers);
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

TEST_F(LocalModelTest, DeepspeedaiPipelinesCountLayersFrom2) {
  const auto model = Plan(Gpt(false), {.tp = 2, .pp = 2, .zero = 1});
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->names, LocalNames::kPipeline);
  ASSERT_EQ(model->ranks.size(), 4u);
  const auto& first = model->rank(0, 1, 2);
  EXPECT_THAT(LayersOf(first), ElementsAre(1, 2, 3));
  EXPECT_THAT(NamesOf(first), IsSupersetOf({"1.word_embeddings.weight", "1.position_embeddings.weight",
                                            "2.input_layernorm.weight", "3.mlp.dense_4h_to_h.bias"}));
  const auto& last = model->rank(1, 1, 2);
  EXPECT_THAT(LayersOf(last), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(NamesOf(last), IsSupersetOf({"4.self_attention.query_key_value.weight", "6.weight", "6.bias",
                                           "7.lm_head.weight"}));
}

TEST_F(LocalModelTest, BigSciencePipelinesHaveFunctionsAroundTheLayers) {
  const auto model = Plan(Bloom(), {.tp = 1, .pp = 2, .zero = 1});
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_TRUE(model->shape.dialect.bigscience);
  EXPECT_THAT(LayersOf(model->rank(0, 0, 1)), ElementsAre(1, 3, 4));
  EXPECT_THAT(LayersOf(model->rank(1, 0, 1)), ElementsAre(1, 5, 6, 8));
  EXPECT_THAT(NamesOf(model->rank(1, 0, 1)),
              IsSupersetOf({"5.input_layernorm.weight", "8.weight", "8.bias"}));
}

TEST_F(LocalModelTest, TheLastStageRepeatsATiedEmbedding) {
  const std::string tied = "tied_modules.embed.word_embeddings.weight";
  const auto model = Plan(Gpt(true), {.tp = 1, .pp = 2, .zero = 1});
  ASSERT_TRUE(model.ok()) << model.status().message();
  for (const int stage : {0, 1}) {
    const auto& held = model->rank(stage, 0, 1);
    const auto at = std::ranges::find(held, tied, &LocalTensor::name);
    ASSERT_NE(at, held.end()) << stage;
    EXPECT_EQ(at->copy, stage == 1);
    EXPECT_EQ(at->file_name, "word_embeddings.weight");
    EXPECT_EQ(at->pipeline_layer, 1);
  }
  const auto untied = Plan(Gpt(false), {.tp = 1, .pp = 2, .zero = 1});
  ASSERT_TRUE(untied.ok()) << untied.status().message();
  for (const auto& held : untied->ranks) EXPECT_THAT(NamesOf(held), Not(Contains(tied)));
}

TEST_F(LocalModelTest, WithoutAPipelineUsesNamesOfTheLanguageModel) {
  const auto model = Plan(Gpt(false), {.tp = 1, .pp = 1, .dp = 2, .zero = 2});
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->names, LocalNames::kLanguage);
  EXPECT_THAT(
      NamesOf(model->ranks.at(0)),
      IsSupersetOf({"language_model.embedding.word_embeddings.weight",
                    "language_model.embedding.position_embeddings.weight",
                    "language_model.encoder.layers.3.post_attention_layernorm.bias",
                    "language_model.encoder.final_layernorm.weight", "language_model.output_layer.weight"}));
}

TEST_F(LocalModelTest, AnUnknownFamilyKeepsItsNamesOnOneRank) {
  StepRecipe recipe = Gpt(true);
  recipe.model = nlohmann::json::object();
  const auto model = Plan(recipe, {.tp = 1, .pp = 1, .dp = 2, .zero = 1});
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->names, LocalNames::kPlain);
  ASSERT_EQ(model->ranks.size(), 1u);
  EXPECT_THAT(NamesOf(model->ranks[0]), IsSupersetOf({"embedding.word.weight", "layers.3.mlp.down.bias"}));
  EXPECT_THAT(Plan(recipe, {.tp = 2, .pp = 1, .zero = 1}).status().message(),
              HasSubstr("choose --tp 1 --pp 1"));
}

TEST_F(LocalModelTest, RefusesOptionsThatDeepSpeedLacks) {
  EXPECT_THAT(Plan(Gpt(true), {.tp = 1, .pp = 2, .zero = 2}).status().message(), HasSubstr("ZeRO 2"));
  EXPECT_THAT(Plan(Gpt(true), {.tp = 1, .pp = 2, .zero = 1, .virtual_stages = 2}).status().message(),
              HasSubstr("virtual stages"));
}

}  // namespace
}  // namespace cairn
