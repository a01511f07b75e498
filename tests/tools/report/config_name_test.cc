#include "tools/report/config_name.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(ConfigNameTest, ParsesTheTeamsNames) {
  const RunConfig config = ConfigFromName("/logs/61B-ds-zero1-mbs-2-pp16-dp-1-gas-512.out");
  EXPECT_EQ(config.size_b, 61);
  EXPECT_EQ(config.zero, 1);
  EXPECT_EQ(config.mbs, 2);
  EXPECT_EQ(config.pp, 16);
  EXPECT_EQ(config.dp, 1);
  EXPECT_EQ(config.gas, 512);
  EXPECT_FALSE(config.tp.has_value());
}

TEST(ConfigNameTest, ParsesOtherSpellings) {
  const RunConfig config = ConfigFromName("gpt2-1.3b_TP=2_PP_4-16nodes-nl-24-hs2048-64gpus.12345.log");
  EXPECT_EQ(config.size_b, 1.3);
  EXPECT_EQ(config.tp, 2);
  EXPECT_EQ(config.pp, 4);
  EXPECT_EQ(config.nodes, 16);
  EXPECT_EQ(config.layers, 24);
  EXPECT_EQ(config.hidden, 2048);
  EXPECT_EQ(config.gpus, 64);
  EXPECT_EQ(ConfigFromName("350M-gas-512.77.out").gas, 512);
  EXPECT_EQ(ConfigFromName("350M-gas-512.77.out").size_b, 0.35);
}

TEST(ConfigNameTest, ANumberWithAUnitIsNotTheValueOfTheWordBefore) {
  for (const char* name : {"mp-61B.out", "z_61B.out", "ds-61B.out"}) {
    const RunConfig config = ConfigFromName(name);
    EXPECT_EQ(config.size_b, 61) << name;
    EXPECT_FALSE(config.tp || config.zero) << name;
  }
  EXPECT_EQ(ConfigFromName("dp2tp4").dp, 2);
  EXPECT_EQ(ConfigFromName("dp2tp4").tp, 4);
}

TEST(ConfigNameTest, IgnoresOtherWords) {
  for (const char* name :
       {"slurm-12345.out", "tr1-fp16-a100-80gb", "run_3.log", "", "0", "-", "b", "mbs-", "x61"})
    EXPECT_TRUE(ConfigFromName(name).empty()) << name;
}

}  // namespace
}  // namespace cairn
