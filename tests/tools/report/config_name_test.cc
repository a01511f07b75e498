#include "tools/report/config_name.h"

#include <gtest/gtest.h>

#include "tools/report/run_config.h"

namespace cairn {
namespace {

TEST(ConfigNameTest, ParsesNames) {
  EXPECT_EQ(ConfigFromName("/logs/61B-ds-zero1-mbs-2-pp16-dp-1-gas-512.out"),
            (RunConfig{.size_b = 61, .pp = 16, .dp = 1, .mbs = 2, .gas = 512, .zero = 1}));
  EXPECT_EQ(
      ConfigFromName("gpt2-1.3b_TP=2_PP_4-16nodes-nl-24-hs2048-64gpus.12345.log"),
      (RunConfig{.size_b = 1.3, .gpus = 64, .nodes = 16, .tp = 2, .pp = 4, .layers = 24, .hidden = 2048}));
  EXPECT_EQ(ConfigFromName("350M-gas-512.77.out"), (RunConfig{.size_b = 0.35, .gas = 512}));
  EXPECT_EQ(ConfigFromName("dp2tp4"), (RunConfig{.tp = 4, .dp = 2}));
}

TEST(ConfigNameTest, ANumberWithAUnitIsNotTheValueOfTheWordBefore) {
  for (const char* name : {"mp-61B.out", "z_61B.out", "ds-61B.out"})
    EXPECT_EQ(ConfigFromName(name), RunConfig{.size_b = 61}) << name;
}

TEST(ConfigNameTest, IgnoresOtherWords) {
  for (const char* name :
       {"slurm-12345.out", "tr1-fp16-a100-80gb", "run_3.log", "", "0", "-", "b", "mbs-", "x61"})
    EXPECT_TRUE(ConfigFromName(name).empty()) << name;
}

}  // namespace
}  // namespace cairn
