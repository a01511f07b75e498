#include "tools/check/expert_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

using testing::HasSubstr;

// The message for experts of two elements each, whose bytes come in parts of `at_once` elements.
std::string EqualOf(const std::vector<float>& values, size_t at_once) {
  const TensorEntry stack{
      {.name = "experts", .shape = {values.size() / 2, 2}, .of_experts = true}, Role::kWeight, Dtype::kF32};
  ExpertCheck check(stack);
  for (size_t i = 0; i < values.size(); i += at_once)
    check.Add(std::as_bytes(std::span(values).subspan(i, std::min(at_once, values.size() - i))));
  return check.Equal();
}

TEST(ExpertCheckTest, NamesEqualExpertsHoweverTheirBytesCome) {
  for (const size_t at_once : {1, 2, 3, 8, 100}) {
    EXPECT_THAT(EqualOf({1, 2, 3, 4, 1, 2, 3, 5, 1, 2}, at_once), HasSubstr("experts 0 = 2 = 4 are equal"));
    EXPECT_EQ(EqualOf({1, 2, 3, 4, 2, 1, 3, 5}, at_once), "");
  }
}

TEST(ExpertCheckTest, ConstantExpertsMayBeEqual) {
  EXPECT_EQ(EqualOf({0, 0, 1, 2, 0, 0, 7, 7, 7, 7}, 3), "");
}

}  // namespace
}  // namespace cairn
