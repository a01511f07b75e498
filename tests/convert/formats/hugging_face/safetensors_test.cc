#include "convert/formats/hugging_face/safetensors.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(SafetensorsTest, ParametersOfAMixtureAreRefusedByName) {
  const ParameterSpec dense{.name = "up", .shape = {8, 4}, .cuts = {{.dim = 0, .unit = 2}}, .layer = 3};
  EXPECT_EQ(EncodeParameters({dense}).value(), R"([["up",0,2,0,3,false]])");
  ParameterSpec experts = dense;
  experts.of_experts = true;
  EXPECT_EQ(EncodeParameters({experts}).status().kind(), StatusKind::kNotSupported);
  EXPECT_EQ(EncodeParameters({experts}).status().message(),
            "tensor up: cairn.parameters has no place for its cuts");
}

}  // namespace
}  // namespace cairn
