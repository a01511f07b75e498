#include "tools/interval/parity.h"

#include <gtest/gtest.h>

#include "ckpt/step/parity_file.h"

namespace cairn {
namespace {

TEST(ParityTest, TextsGoBothWays) {
  for (const char* text : {"none", "xor:8", "rs:8+2", "rs:10+4"}) EXPECT_EQ(ParseParity(text)->Text(), text);
  EXPECT_EQ(ParseParity("rs:8,2")->Text(','), "rs:8,2");
  for (const char* text :
       {"xor:2", "xor:32", "rs:8+2", "rs:32+31"})  // a training takes what the plan advises
    EXPECT_TRUE(ParseRedundancy(ParseParity(text)->Text(',')).ok()) << text;
  EXPECT_FALSE(ParseParity("rs:33+2").ok());
  for (const char* text :
       {"", "xor", "xor:", "xor:1", "xor:8+1", "rs:8", "rs:8+", "rs:2+2", "rs:8+0", "rs:999+2"})
    EXPECT_EQ(ParseParity(text).status().kind(), StatusKind::kInvalidArgument) << text;
}

// Every way to lose nodes is counted.
double Counted(const Parity& parity, int nodes, int lost) {
  int ways = 0, beyond = 0;
  for (unsigned set = 0; set < 1U << nodes; ++set) {
    if (__builtin_popcount(set) != lost) continue;
    ++ways;
    bool fits = true;
    for (int first = 0; first < nodes; first += static_cast<int>(parity.group)) {
      int here = 0;
      for (int node = first; node < first + parity.group; ++node) here += (set >> node) & 1U;
      fits = fits && here <= parity.parity;
    }
    beyond += !fits;
  }
  return static_cast<double>(beyond) / ways;
}

TEST(ParityTest, NodesThatAreLostTogetherAreCountedByGroups) {
  for (const Parity parity : {Parity{4, 1}, Parity{6, 2}, Parity{12, 3}})
    for (int lost = 1; lost < 8; ++lost)
      EXPECT_NEAR(BeyondParity(parity, 12, lost), Counted(parity, 12, lost), 1e-9) << parity.Text() << lost;
  EXPECT_EQ(BeyondParity({}, 8, 1), 1);
  EXPECT_EQ(BeyondParity({8, 1}, 16, 16), 1);
  // As with birthdays: 1 - exp(-pairs * 7 / 8191).
  EXPECT_NEAR(BeyondParity({8, 1}, 8192, 30), 0.31, 0.005);
  EXPECT_NEAR(BeyondParity({8, 1}, 8192, 300), 1, 1e-9);
}

TEST(ParityTest, ASecondLossWithinTheRestartIsRare) {
  EXPECT_EQ(LostMeanwhile({}, 1e-6), 1);
  EXPECT_NEAR(LostMeanwhile({8, 1}, 1e-5), 7e-5, 1e-8);
  EXPECT_LT(LostMeanwhile({8, 2}, 1e-5), 1e-8);
}

}  // namespace
}  // namespace cairn
