#include "ckpt/base/short_list.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(ShortListTest, NamesTheFirstFewAndCountsTheRest) {
  EXPECT_EQ(ShortList(std::vector<std::string>()), "");
  EXPECT_EQ(ShortList({"a", "b", "c", "d"}), "a, b, c, d");
  EXPECT_EQ(ShortList({"a", "b", "c", "d", "e", "f"}), "a, b, c, d and 2 more");
  const auto number = [](size_t index) { return std::to_string(index); };
  EXPECT_EQ(ShortList(9, number, 2, "; "), "0; 1 and 7 more");
}

}  // namespace
}  // namespace cairn
