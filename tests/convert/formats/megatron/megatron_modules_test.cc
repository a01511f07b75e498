#include "convert/formats/megatron/megatron_modules.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(MegatronModulesTest, AFusedMatrixIsMadeOfCanonicalModulesThatAreCutAlike) {
  for (const MegatronModule& module : MegatronModules()) {
    ASSERT_FALSE(module.canonical.empty()) << module.name;
    for (const std::string_view name : module.canonical) {
      const CanonicalModule* part = FindCanonicalModule(name);
      ASSERT_NE(part, nullptr) << name;
      for (const bool bias : {false, true})
        EXPECT_EQ(CutDim(*part, bias), CutDim(module.cut_as(), bias)) << module.name;
      EXPECT_EQ(CutsHeads(*part), CutsHeads(module.cut_as())) << module.name;
    }
  }
}

TEST(MegatronModulesTest, NamesOfOtherProgramsAreFound) {
  EXPECT_EQ(FindMegatronModule("self_attention.linear_qkv"), FindMegatronModule("attention.query_key_value"));
  EXPECT_TRUE(FindMegatronModule("self_attention.linear_qkv")->is_qkv());
  EXPECT_TRUE(FindMegatronModule("mlp.linear_fc1")->is_gate_up());
  EXPECT_TRUE(FindMegatronModule("lm_head")->is_vocabulary());
  EXPECT_FALSE(FindMegatronModule("position_embeddings")->is_vocabulary());
  EXPECT_EQ(FindMegatronModule("self_attention.linear_qkv.layer_norm")->canonical[0], "input_norm");
  EXPECT_EQ(FindMegatronModule("mlp.router"), nullptr);
  EXPECT_EQ(FindMegatronModule(""), nullptr);
}

}  // namespace
}  // namespace cairn
