#include "ckpt/base/parse_number.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(ParseNumberTest, TakesTheWholeTextOrNothing) {
  EXPECT_EQ(ParseNumber<int>("12"), 12);
  EXPECT_EQ(ParseNumber<int>("-12"), -12);
  EXPECT_EQ(ParseNumber<double>("1.5e3"), 1500);
  for (const char* text : {"", " 1", "1 ", "1x", "x", "+1", "1e3", "99999999999"})
    EXPECT_EQ(ParseNumber<int>(text), std::nullopt) << text;
  EXPECT_EQ(ParseNumber<unsigned>("-1"), std::nullopt);
}

TEST(ParseNumberTest, RefusesLessThanTheLeast) {
  EXPECT_EQ(ParseNumber<int>("0", 0), 0);
  EXPECT_EQ(ParseNumber<int>("-1", 0), std::nullopt);
}

TEST(ParseNumberTest, TakesANumberOffTheStart) {
  std::string_view text = "3,4x";
  EXPECT_EQ(TakeNumber<int>(text), 3);
  EXPECT_EQ(text, ",4x");
  EXPECT_EQ(TakeNumber<int>(text), std::nullopt);
  EXPECT_EQ(text, ",4x");
}

}  // namespace
}  // namespace cairn
