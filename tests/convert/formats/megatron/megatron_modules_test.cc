#include "convert/formats/megatron/megatron_modules.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

const ModelShape kShape{.layers = 1, .hidden = 8, .heads = 4, .vocab = 101};

TEST(MegatronModulesTest, AFusedMatrixIsMadeOfCanonicalModulesThatAreCutAlike) {
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

TEST(MegatronModulesTest, NamesOfOtherProgramsAreFound) {
  EXPECT_EQ(FindMegatronParameter("self_attention.linear_qkv.weight").module,
            FindMegatronParameter("attention.query_key_value.weight").module);
  EXPECT_TRUE(FindMegatronParameter("self_attention.linear_qkv.weight").module->is_qkv());
  EXPECT_TRUE(FindMegatronParameter("mlp.linear_fc1.weight").module->is_gate_up());
  EXPECT_TRUE(FindMegatronParameter("lm_head.weight").module->is_vocabulary());
  EXPECT_FALSE(FindMegatronParameter("position_embeddings.weight").module->is_vocabulary());
  EXPECT_EQ(FindMegatronParameter("self_attention.linear_qkv.layer_norm.weight").module->canonical[0],
            "input_norm");
  EXPECT_EQ(FindMegatronParameter("mlp.router.weight").module, nullptr);
  EXPECT_EQ(FindMegatronParameter("").module, nullptr);
}

TEST(MegatronModulesTest, NamesOfAllVersionsAreKnown) {
  for (const char* name : {"word_embeddings.weight", "attention.dense.bias",
                           "self_attention.linear_proj.weight", "self_attention.linear_qkv.layer_norm_weight",
                           "mlp.linear_fc1.layer_norm_bias", "pre_mlp_layernorm.weight", "lm_head.weight"})
    EXPECT_TRUE(FindMegatronParameter(name).module) << name;
  for (const char* name : {"", "weight", "bias", "mlp.router.weight", "mlp.experts.linear_fc1.weight",
                           "self_attention.linear_q_proj.weight", "word_embeddings.scale"})
    EXPECT_FALSE(FindMegatronParameter(name).module) << name;
}

}  // namespace
}  // namespace cairn
