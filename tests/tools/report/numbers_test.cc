#include "tools/report/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <string>

namespace cairn {
namespace {

TEST(NumbersTest, ParsesTheNearestDouble) {
  std::mt19937_64 random(1);
  for (int k = 0; k < 200000; ++k) {
    std::string text;
    const int digits = static_cast<int>(random() % 22) + 1;
    const int dot = static_cast<int>(random() % 24);
    for (int i = 0; i < digits; ++i) {
      if (i == dot) text += '.';
      text += static_cast<char>('0' + random() % 10);
    }
    if (random() % 2)
      text += (random() % 2 ? "E-" : "e+") + std::to_string(random() % (random() % 10 == 0 ? 400 : 30));
    const auto number = NumberAt(text + " |");
    ASSERT_TRUE(number.has_value()) << text;
    ASSERT_EQ(number->value, std::strtod(text.c_str(), nullptr)) << text;
    ASSERT_EQ(number->length, text.size()) << text;
  }
}

TEST(NumbersTest, ParsesNamedNumbersOnly) {
  EXPECT_TRUE(std::isnan(NumberAt("nan |")->value));
  EXPECT_TRUE(std::isnan(NumberAt("NaN")->value));
  EXPECT_EQ(NumberAt("-inf")->value, -INFINITY);
  EXPECT_EQ(NumberAt("-2.5e-1x")->value, -0.25);
  EXPECT_EQ(NumberAt("3e")->length, 1u);
  for (const char* text : {"", "-", ".", "x", "info", "+.e5", "nano"})
    EXPECT_FALSE(NumberAt(text).has_value()) << text;
}

TEST(NumbersTest, ParsesCounts) {
  EXPECT_EQ(CountAt("  512 "), 512);
  EXPECT_EQ(CountAt("1e3"), 1000);
  for (const char* text : {"-1", "1.5", "1e40", "nan", ""}) EXPECT_FALSE(CountAt(text).has_value()) << text;
}

}  // namespace
}  // namespace cairn
