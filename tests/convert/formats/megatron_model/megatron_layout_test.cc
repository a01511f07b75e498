// The contents of a tensor parallel rank of Megatron. Expected rows are those of megatron-core 0.16.1
// (transformer/attention.py, transformer/mlp.py, tensor_parallel/layers.py), written down by hand.
#include "convert/formats/megatron_model/megatron_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/make_step.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TrainingTensors Parameters(const std::vector<std::pair<std::string, Dims>>& named_shapes) {
  TrainingTensors tensors;
  for (const auto& [name, shape] : named_shapes) {
    tensors.parameters.emplace_back();
    tensors.parameters.back().spec = {.name = name, .shape = shape};
  }
  return tensors;
}

std::string Range(const Box& box, int dim) {
  return fmt::format("{}:{}", box.offset[dim], box.offset[dim] + box.extent[dim]);
}

// "layers.0.mlp.up.weight 4:8 -> 0:4" of each part, along dimension `dim`.
std::vector<std::string> PartsOf(const MegatronTensor& tensor, const TrainingTensors& tensors, int dim = 0) {
  std::vector<std::string> parts;
  for (const MegatronPart& part : tensor.parts)
    parts.push_back(fmt::format("{} {} -> {}", tensors.parameters[part.parameter].spec.name,
                                Range(part.box, dim), Range(part.in_array, dim)));
  return parts;
}

// The only tensor of a rank.
MegatronTensor OneTensor(const TrainingTensors& tensors, const MegatronShape& shape, int tp, int rank) {
  const auto held = MegatronTensors(tensors, shape, {.tp = tp}, rank);
  if (!held.ok() || held->size() != 1) {
    ADD_FAILURE() << (held.ok() ? "not one tensor" : held.status().message());
    return {};
  }
  return held->at(0);
}

const MegatronShape kSmall{{.layers = 1, .hidden = 8, .heads = 4, .ffn = 6, .vocab = 101}};

TEST(MegatronLayoutTest, QueryKeyAndValueOfAHeadAreAdjacent) {
  const TrainingTensors tensors = Parameters({{"layers.0.attention.query.weight", {8, 8}},
                                              {"layers.0.attention.key.weight", {8, 8}},
                                              {"layers.0.attention.value.weight", {8, 8}}});
  const MegatronTensor fused = OneTensor(tensors, kSmall, 2, 1);
  EXPECT_EQ(fused.module->name, "self_attention.query_key_value");
  EXPECT_EQ(fused.layer, 0);
  EXPECT_EQ(fused.shape, (Dims{12, 8}));
  EXPECT_EQ(fused.cuts, (std::vector<Cut>{{.dim = 0}}));
  EXPECT_THAT(
      PartsOf(fused, tensors),
      ElementsAre("layers.0.attention.query.weight 4:6 -> 0:2", "layers.0.attention.key.weight 4:6 -> 2:4",
                  "layers.0.attention.value.weight 4:6 -> 4:6", "layers.0.attention.query.weight 6:8 -> 6:8",
                  "layers.0.attention.key.weight 6:8 -> 8:10",
                  "layers.0.attention.value.weight 6:8 -> 10:12"));
}

TEST(MegatronLayoutTest, AGroupHasQueryHeadsThenOneKeyAndOneValue) {
  MegatronShape shape = kSmall;
  shape.kv_heads = 2;
  const TrainingTensors tensors = Parameters({{"layers.0.attention.query.bias", {8}},
                                              {"layers.0.attention.key.bias", {4}},
                                              {"layers.0.attention.value.bias", {4}}});
  const MegatronTensor fused = OneTensor(tensors, shape, 2, 1);
  EXPECT_TRUE(fused.bias);
  EXPECT_EQ(fused.shape, (Dims{8}));
  EXPECT_THAT(PartsOf(fused, tensors), ElementsAre("layers.0.attention.query.bias 4:8 -> 0:4",
                                                   "layers.0.attention.key.bias 2:4 -> 4:6",
                                                   "layers.0.attention.value.bias 2:4 -> 6:8"));
}

TEST(MegatronLayoutTest, EachRankHasItsHalvesOfAGatedMlp) {
  MegatronShape shape = kSmall;
  shape.modules = kLlamaModules;
  const TrainingTensors tensors =
      Parameters({{"layers.0.mlp.up.weight", {6, 8}}, {"layers.0.mlp.gate.weight", {6, 8}}});
  const MegatronTensor fused = OneTensor(tensors, shape, 2, 1);
  EXPECT_EQ(fused.module->name, "mlp.dense_h_to_4h");
  EXPECT_EQ(fused.shape, (Dims{6, 8}));
  EXPECT_TRUE(fused.gated);
  EXPECT_THAT(PartsOf(fused, tensors),
              ElementsAre("layers.0.mlp.gate.weight 3:6 -> 0:3", "layers.0.mlp.up.weight 3:6 -> 3:6"));
  shape.dialect.gate_last = true;  // BigScience's GLU is up * act(gate)
  EXPECT_THAT(PartsOf(OneTensor(tensors, shape, 2, 0), tensors),
              ElementsAre("layers.0.mlp.up.weight 0:3 -> 0:3", "layers.0.mlp.gate.weight 0:3 -> 3:6"));
}

TEST(MegatronLayoutTest, RowParallelWeightsAreCutByColumns) {
  const TrainingTensors down = Parameters({{"layers.0.mlp.down.weight", {8, 6}}});
  const MegatronTensor weight = OneTensor(down, kSmall, 2, 1);
  EXPECT_EQ(weight.cuts, (std::vector<Cut>{{.dim = 1}}));
  EXPECT_EQ(weight.shape, (Dims{8, 3}));
  EXPECT_THAT(PartsOf(weight, down, 1), ElementsAre("layers.0.mlp.down.weight 3:6 -> 0:3"));

  const TrainingTensors bias = Parameters({{"layers.0.mlp.down.bias", {8}}});
  EXPECT_TRUE(OneTensor(bias, kSmall, 2, 1).cuts.empty());
  EXPECT_THAT(PartsOf(OneTensor(bias, kSmall, 2, 1), bias), ElementsAre("layers.0.mlp.down.bias 0:8 -> 0:8"));
}

TEST(MegatronLayoutTest, TheVocabularyIsPaddedToAMultipleOfTp) {
  MegatronShape shape = kSmall;
  shape.ffn = 8;
  shape.vocab_multiple = 8;
  EXPECT_EQ(shape.PaddedVocab(1), 104);
  EXPECT_EQ(shape.PaddedVocab(2), 112);
  shape.vocab_multiple = 64;
  EXPECT_EQ(shape.PaddedVocab(4), 256);

  const TrainingTensors words = Parameters({{"embedding.word.weight", {101, 8}}});
  const auto rank = [&](int at) { return OneTensor(words, shape, 4, at); };
  EXPECT_TRUE(rank(0).is_vocabulary());
  EXPECT_EQ(rank(0).layer, kBeforeLayers);
  for (int at = 0; at < 4; ++at) EXPECT_EQ(rank(at).shape, (Dims{64, 8}));
  EXPECT_THAT(PartsOf(rank(0), words), ElementsAre("embedding.word.weight 0:64 -> 0:64"));
  EXPECT_THAT(PartsOf(rank(1), words), ElementsAre("embedding.word.weight 64:101 -> 0:37"));
  EXPECT_THAT(PartsOf(rank(2), words), ElementsAre("embedding.word.weight 101:101 -> 0:0"));
}

TEST(MegatronLayoutTest, TensorsAreInTheOrderOfRegistration) {
  const TinyGpt model{.layers = 1, .hidden = 8, .heads = 4, .ffn = 8, .tied = false};
  TrainingTensors tensors;
  for (const ParameterSpec& spec : SpecsOf(model)) {
    tensors.parameters.emplace_back();
    tensors.parameters.back().spec = spec;
  }
  const auto shape = MegatronShapeOf(ModelJson(model), tensors);
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  const auto held = MegatronTensors(tensors, *shape, {}, 0);
  ASSERT_TRUE(held.ok()) << held.status().message();
  std::vector<std::string> names;
  for (const MegatronTensor& tensor : *held)
    if (!tensor.bias) names.emplace_back(tensor.module->name);
  EXPECT_THAT(
      names, ElementsAre("word_embeddings", "position_embeddings", "input_layernorm",
                         "self_attention.query_key_value", "self_attention.dense", "post_attention_layernorm",
                         "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", "final_layernorm", "output_layer"));
}

TEST(MegatronLayoutTest, TheShapeFollowsFromTheModelAndItsTensors) {
  const TrainingTensors gpt2 = Parameters({{"embedding.word.weight", {101, 32}},
                                           {"layers.0.mlp.down.bias", {32}},
                                           {"layers.0.attention.query.bias", {32}}});
  const nlohmann::json model = {
      {"num_layers", 2}, {"hidden_size", 32}, {"num_attention_heads", 4}, {"vocab_size", 101}};
  const auto shape = MegatronShapeOf(model, gpt2);
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  EXPECT_EQ(shape->kv_heads, 4);
  EXPECT_EQ(shape->head_dim, 8);
  EXPECT_EQ(shape->ffn, 128);
  EXPECT_TRUE(shape->tied && shape->modules.HasBias("mlp.down") && shape->modules.HasBias("attention.query"));
  EXPECT_FALSE(shape->IsGated() || shape->modules.Has("attention.query_norm"));

  const TrainingTensors llama =
      Parameters({{"output.weight", {101, 32}}, {"layers.0.mlp.gate.weight", {48, 32}}});
  nlohmann::json grouped = model;
  grouped.update({{"num_key_value_heads", 2}, {"head_dim", 16}, {"ffn_hidden_size", 48}});
  const auto other = MegatronShapeOf(grouped, llama);
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(other->kv_heads, 2);
  EXPECT_EQ(other->head_dim, 16);
  EXPECT_EQ(other->ffn, 48);
  EXPECT_TRUE(other->IsGated());
  EXPECT_FALSE(other->tied || other->modules.HasBias("mlp.down") ||
               other->modules.HasBias("attention.query"));

  grouped["num_key_value_heads"] = 3;
  EXPECT_EQ(MegatronShapeOf(grouped, llama).status().kind(), StatusKind::kInvalidArgument);
  for (const char* field : {"num_layers", "hidden_size", "num_attention_heads", "vocab_size"}) {
    nlohmann::json without = model;
    without.erase(field);
    EXPECT_EQ(MegatronShapeOf(without, gpt2).status().kind(), StatusKind::kNotSupported) << field;
  }
}

TEST(MegatronLayoutTest, RefusesUnknownAndIndivisibleTensorsByName) {
  const TrainingTensors router = Parameters({{"layers.0.mlp.routers.weight", {4, 8}}});
  EXPECT_THAT(MegatronTensors(router, kSmall, {}, 0).status().message(),
              HasSubstr("layers.0.mlp.routers.weight"));
  const TrainingTensors wide = Parameters({{"layers.0.mlp.up.weight", {7, 8}}});
  EXPECT_THAT(MegatronTensors(wide, kSmall, {}, 0).status().message(), HasSubstr("layers.0.mlp.up.weight"));
  const TrainingTensors query = Parameters({{"layers.0.attention.query.weight", {8, 8}}});
  EXPECT_FALSE(MegatronTensors(query, kSmall, {}, 0).ok());
  for (const int tp : {3, 4, 8})  // 4 heads, but 6 FFN units; neither
    EXPECT_EQ(MegatronTensors(Parameters({}), kSmall, {.tp = tp}, 0).status().kind(),
              StatusKind::kInvalidArgument)
        << tp;
}

}  // namespace
}  // namespace cairn
