#include "runtime/config/model_spec.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ckpt/model/canonical_modules.h"
#include "ckpt/model/placement.h"
#include "runtime/config/checkpoint_model.h"

namespace cairn {
namespace {

TrainConfig SmallModel() {
  TrainConfig config;
  config.num_layers = 3;
  config.hidden_size = 64;
  config.num_attention_heads = 4;
  config.vocab_size = 1001;
  config.seq_length = 32;
  return config;
}

const ParameterSpec& Find(const std::vector<ParameterSpec>& specs, std::string_view name) {
  for (const ParameterSpec& spec : specs)
    if (spec.name == name) return spec;
  throw std::out_of_range(std::string(name));
}

// The formula of GPT parameter counts: l(12h^2 + 13h) + vh + sh + 2h.
TEST(ModelSpecTest, CountMatchesThePublishedFormula) {
  const uint64_t l = 3, h = 64, v = 1001, s = 32;
  EXPECT_EQ(CountParameters(GptSpecs(SmallModel())), l * (12 * h * h + 13 * h) + v * h + s * h + 2 * h);
}

TEST(ModelSpecTest, TiedEmbeddingIsOnTheLastStageToo) {
  auto specs = GptSpecs(SmallModel());
  EXPECT_TRUE(Find(specs, "embedding.word.weight").tied_to_last);
  TrainConfig untied = SmallModel();
  untied.untie_embeddings_and_output_weights = true;
  specs = GptSpecs(untied);
  EXPECT_FALSE(Find(specs, "embedding.word.weight").tied_to_last);
  EXPECT_EQ(Find(specs, "output.weight").layer, kAfterLayers);
}

// Fields that a manifest leaves out follow from the rest: here the size of a head.
TEST(ModelSpecTest, ReadsTheModelOfAStep) {
  const TrainConfig config = SmallModel();
  std::vector<std::string> names;
  for (const ParameterSpec& spec : GptSpecs(config))
    if (!spec.name.starts_with("layers.") || spec.name.starts_with("layers.0.")) names.push_back(spec.name);
  const Result<CheckpointModel> read = ReadCheckpointModel("step", ModelFacts(config), names);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->spec.shape.head_dim, 16);
  EXPECT_EQ(read->spec.shape.kv_heads, 4);
}

TEST(ModelSpecTest, QueryKeyAndValueAreAdjacentInEveryLayout) {
  const auto specs = GptSpecs(SmallModel());
  auto layout = LayoutOf(specs, {.tp = 2, .pp = 2, .dp = 1}, 3);
  ASSERT_TRUE(layout.ok());
  for (size_t i = 0; i + 2 < layout->parameters.size(); ++i) {
    const LocalParameter& query = layout->parameters[i];
    if (specs[query.index].name.find("query") == std::string::npos) continue;
    EXPECT_EQ(layout->parameters[i + 1].flat_begin, query.flat_begin + query.shape.Volume());
    EXPECT_EQ(layout->parameters[i + 2].flat_begin, query.flat_begin + 2 * query.shape.Volume());
  }
}

}  // namespace
}  // namespace cairn
