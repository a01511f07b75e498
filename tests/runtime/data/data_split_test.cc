#include "runtime/data/data_split.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

using Ranges = std::array<SequenceRange, 3>;

Ranges Of(std::string_view split, uint64_t count) {
  const auto ranges = SplitSequences(split, count);
  EXPECT_TRUE(ranges.ok()) << ranges.status().message();
  return ranges.ok() ? *ranges : Ranges{};
}

TEST(DataSplitTest, SharesAreNormalised) {
  EXPECT_EQ(Of("969,30,1", 1000), (Ranges{{{0, 969}, {969, 999}, {999, 1000}}}));
  EXPECT_EQ(Of("0.5, .25 ,0.25", 8), (Ranges{{{0, 4}, {4, 6}, {6, 8}}}));
  EXPECT_EQ(Of("100,0,0", 7), (Ranges{{{0, 7}, {7, 7}, {7, 7}}}));
  EXPECT_EQ(Of("1", 7), (Ranges{{{0, 7}, {7, 7}, {7, 7}}}));
  EXPECT_EQ(Of("0,1", 7), (Ranges{{{0, 0}, {0, 7}, {7, 7}}}));
}

TEST(DataSplitTest, BoundsAreRoundedHalfToEven) {
  EXPECT_EQ(Of("1,1,0", 5), (Ranges{{{0, 2}, {2, 5}, {5, 5}}}));
  EXPECT_EQ(Of("1,1,0", 7), (Ranges{{{0, 4}, {4, 7}, {7, 7}}}));
}

TEST(DataSplitTest, SmallPartsMayBeEmpty) {
  EXPECT_EQ(Of("969,30,1", 10), (Ranges{{{0, 10}, {10, 10}, {10, 10}}}));
  EXPECT_EQ(Of("969,30,1", 0), (Ranges{}));
}

TEST(DataSplitTest, MalformedSharesAreRefused) {
  for (const std::string_view split :
       {"", ",", "1,", "1,,2", "-1,2", "1,2,3,4", "0,0,0", "a", "1e3", "inf", "nan", "1;2", "1 2"}) {
    const auto ranges = SplitSequences(split, 10);
    ASSERT_FALSE(ranges.ok()) << split;
    EXPECT_EQ(ranges.status().kind(), StatusKind::kInvalidArgument);
  }
}

}  // namespace
}  // namespace cairn
