#include "convert/formats/megatron_model/megatron_modules.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

const ModelShape kShape{.layers = 1, .hidden = 8, .heads = 4, .vocab = 101};

TEST(MegatronModulesTest, PartsOfAFusedMatrixAreCutAlike) {
  for (const MegatronModule& module : MegatronModules()) {
    ASSERT_FALSE(module.canonical.empty()) << module.name;
    for (const std::string_view name : module.canonical) {
      const CanonicalModule* part = FindCanonicalModule(name);
      ASSERT_NE(part, nullptr) << name;
      for (const bool bias : {false, true})
        EXPECT_EQ(SpecOf(*part, bias, 0, kShape).cuts, SpecOf(module.cut_as(), bias, 0, kShape).cuts) << name;
    }
  }
}

TEST(MegatronModulesTest, FindsNamesOfOtherPrograms) {
  EXPECT_EQ(FindMegatronParameter("self_attention.linear_qkv.weight").module,
            FindMegatronParameter("attention.query_key_value.weight").module);
  EXPECT_TRUE(FindMegatronParameter("self_attention.linear_qkv.weight").module->is_qkv());
  EXPECT_TRUE(FindMegatronParameter("mlp.linear_fc1.weight").module->is_gate_up());
  EXPECT_TRUE(FindMegatronParameter("lm_head.weight").module->is_vocabulary());
  EXPECT_FALSE(FindMegatronParameter("position_embeddings.weight").module->is_vocabulary());
  EXPECT_EQ(FindMegatronParameter("self_attention.linear_qkv.layer_norm.weight").module->canonical[0],
            "input_norm");
  EXPECT_EQ(FindMegatronParameter("mlp.routers.weight").module, nullptr);
  EXPECT_EQ(FindMegatronParameter("").module, nullptr);
}

constexpr MegatronDialect kOwnLayers{.local_spec = true};

TEST(MegatronModulesTest, TransformerEngineHasNormsInsideLinearModules) {
  const auto names_of = [](const char* name) {
    const MegatronModule& module = *FindMegatronParameter(name).module;
    return std::pair(MegatronDialect{}.Name(module, MegatronLayer::kDense, /*bias=*/false),
                     kOwnLayers.Name(module, MegatronLayer::kDense, /*bias=*/false));
  };
  using Names = std::pair<std::string, std::string>;
  EXPECT_EQ(names_of("input_layernorm.weight"),
            Names("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"));
  EXPECT_EQ(names_of("post_attention_layernorm.weight"),
            Names("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"));
  EXPECT_EQ(names_of("mlp.dense_4h_to_h.weight"), Names("mlp.linear_fc2.weight", "mlp.linear_fc2.weight"));
  EXPECT_EQ(names_of("word_embeddings.weight").first, "embedding.word_embeddings.weight");
  EXPECT_EQ(names_of("final_layernorm.weight").first, "decoder.final_layernorm.weight");
}

TEST(MegatronModulesTest, NamesTheTensorsOfMixtures) {
  for (const char* name : {"mlp.router.weight", "mlp.router.expert_bias",
                           "mlp.experts.experts.linear_fc1.weight", "mlp.experts.experts.linear_fc2.bias",
                           "mlp.shared_experts.linear_fc1.weight", "mlp.shared_experts.gate_weight"}) {
    const MegatronParameter found = FindMegatronParameter(name);
    ASSERT_NE(found.module, nullptr) << name;
    EXPECT_EQ(found.bias, std::string_view(name).ends_with("fc2.bias")) << name;
    for (const MegatronDialect& dialect : {MegatronDialect{}, kOwnLayers})
      EXPECT_EQ(dialect.Name(*found.module, MegatronLayer::kMixture, found.bias), name);
  }
  const MegatronModule& norm = *FindMegatronParameter("post_attention_layernorm.weight").module;
  EXPECT_EQ(MegatronDialect{}.Name(norm, MegatronLayer::kMixture, false), "pre_mlp_layernorm.weight");
}

TEST(MegatronModulesTest, InTorchDistOwnLayersTakeTheOthersNamesUnlessAttentionIsLatent) {
  const MegatronModule& norm = *FindMegatronParameter("input_layernorm.weight").module;
  MegatronDialect dialect{.local_spec = true, .distributed = true};
  EXPECT_EQ(dialect.Name(norm, MegatronLayer::kDense, false), "self_attention.linear_qkv.layer_norm_weight");
  dialect.latent = true;
  EXPECT_EQ(dialect.Name(norm, MegatronLayer::kDense, false), "input_layernorm.weight");
  EXPECT_EQ(MegatronDialect{.latent = true}.Name(norm, MegatronLayer::kDense, false),
            "input_layernorm.weight");
}

TEST(MegatronModulesTest, ExpertsAreStacksOfHalves) {
  MegatronShape shape;
  shape.layers = 1, shape.hidden = 3, shape.heads = 1, shape.vocab = 7, shape.experts = 4,
  shape.expert_ffn = 10;
  shape.modules = DecoderModules::Among({"layers.0.mlp.experts.gate.weight"});
  const Topology topology{.tp = 2, .pp = 1, .dp = 2, .ep = 2};
  const char* name = "mlp.experts.experts.linear_fc1.weight";
  // Rank 3 has the second half of the experts, and the second half of the rows of gate and up.
  const auto parts = PartsOfSlice(name, FindMegatronParameter(name), {2, 10, 3}, shape, topology, 3);
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  ASSERT_EQ(parts->size(), 2u);
  for (size_t which : {0, 1}) {
    EXPECT_EQ((*parts)[which].canonical, which);
    EXPECT_EQ((*parts)[which].whole, (Dims{4, 10, 3}));
    EXPECT_EQ((*parts)[which].box.offset, (Dims{2, 5, 0}));
    EXPECT_EQ((*parts)[which].in_array.offset, (Dims{0, 5 * which, 0}));
    EXPECT_EQ((*parts)[which].in_array.extent, (Dims{2, 5, 3}));
  }
  const auto lost = PartsOfSlice(name, FindMegatronParameter(name), {2, 20, 3}, shape, {}, 0);
  ASSERT_FALSE(lost.ok());
  EXPECT_NE(lost.status().message().find("2 of 4 experts"), std::string::npos);
  const auto half = PartsOfSlice(name, FindMegatronParameter(name), {4, 10, 3}, shape, {}, 0);
  ASSERT_FALSE(half.ok());
  EXPECT_NE(half.status().message().find("[4, 5, 3], and the checkpoint's args make it [4, 10, 3]"),
            std::string::npos)
      << half.status().message();
}

TEST(MegatronModulesTest, KnowsTheNamesOfAllVersions) {
  for (const char* name : {"word_embeddings.weight", "attention.dense.bias",
                           "self_attention.linear_proj.weight", "self_attention.linear_qkv.layer_norm_weight",
                           "mlp.linear_fc1.layer_norm_bias", "pre_mlp_layernorm.weight", "lm_head.weight"})
    EXPECT_TRUE(FindMegatronParameter(name).module) << name;
  for (const char* name : {"", "weight", "bias", "mlp.routers.weight", "mlp.experts.linear_fc1.weight",
                           "self_attention.linear_q.weight", "word_embeddings.scale"})
    EXPECT_FALSE(FindMegatronParameter(name).module) << name;
  const char* norm = "self_attention.q_layernorm.weight";
  EXPECT_EQ(FindMegatronParameter(norm).module->canonical[0], "attention.query_norm");
  EXPECT_EQ(FindMegatronParameter(norm, /*latent=*/true).module->canonical[0], "attention.query_down_norm");
}

}  // namespace
}  // namespace cairn
