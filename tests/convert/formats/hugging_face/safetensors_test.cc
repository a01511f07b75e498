#include "convert/formats/hugging_face/safetensors.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(SafetensorsTest, ParametersReadBackWithTheirCuts) {
  const ParameterSpec dense{.name = "up", .shape = {8, 4}, .cuts = {{.dim = 0, .unit = 2}}, .layer = 3};
  const ParameterSpec experts{.name = "experts.down",
                              .shape = {8, 4, 6},
                              .cuts = {{.axis = Axis::kEp, .dim = 0}, {.axis = Axis::kEtp, .dim = 2}},
                              .layer = 3,
                              .of_experts = true};
  const ParameterSpec bias{.name = "bias", .shape = {4}, .layer = 3};
  const std::string text = EncodeParameters({dense, experts, bias});
  EXPECT_EQ(text, R"([["up",0,2,0,3,false],["experts.down",-1,1,0,3,false,[[2,0,1,0],[1,2,1,0]]],)"
                  R"(["bias",-1,1,0,3,false]])");
  const std::map<std::string, Dims, std::less<>> shapes = {
      {"up", {8, 4}}, {"experts.down", {8, 4, 6}}, {"bias", {4}}};
  const auto read = DecodeParameters(text, shapes);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, (std::vector<ParameterSpec>{dense, experts, bias}));
}

TEST(SafetensorsTest, CutsThatNoTensorHasAreRefused) {
  for (const char* row : {R"(["up",2,1,0,3,false])", R"(["up",0,0,0,3,false])", R"(["up",300,1,0,3,false])",
                          R"(["up",0,1,0,3,false,[]])", R"(["up",-1,1,0,3,false,[[0,0,1,0]]])",
                          R"(["up",-1,1,0,3,false,[[2,0,1]]])", R"(["up",-1,1,0,3,false,7])",
                          R"(["up",0,1,9223372036854775808,3,false])",
                          R"(["up",-1,1,0,3,false,[[2,0,1,0],[1,0,1,0]]])", R"(["up",-1,1,0,3])"}) {
    const auto read = DecodeParameters(fmt::format("[{}]", row), {{"up", {8, 4}}});
    EXPECT_EQ(read.status().kind(), StatusKind::kCorrupt) << row;
  }
}

}  // namespace
}  // namespace cairn
