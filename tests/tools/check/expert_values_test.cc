#include "tools/check/expert_values.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

// The experts of one tensor of two elements each, whose bytes come in parts of `at_once` elements.
std::map<uint64_t, ExpertValue> Gather(const std::vector<float>& values, size_t at_once) {
  const std::vector<TensorEntry> tensors = {
      {{.name = "layers.0.mlp.experts.up.weight", .shape = {values.size() / 2, 2}, .of_experts = true},
       Role::kWeight,
       Dtype::kF32}};
  const ExpertCensus census = TakeCensus(tensors, {});
  ExpertValues gathered(tensors, census);
  for (size_t i = 0; i < values.size(); i += at_once)
    gathered.Add(0, std::as_bytes(std::span(values).subspan(i, std::min(at_once, values.size() - i))));
  return gathered.weights().begin()->second.experts;
}

TEST(ExpertValuesTest, DistinguishesExpertsHoweverTheirBytesCome) {
  for (const size_t at_once : {1, 2, 3, 8, 100}) {
    const auto experts = Gather({1, 2, 3, 4, 1, 2, 3, 5, 1, 1}, at_once);
    ASSERT_EQ(experts.size(), 5u);
    EXPECT_EQ(experts.at(0).digest, experts.at(2).digest);
    EXPECT_NE(experts.at(1).digest, experts.at(3).digest);
    EXPECT_EQ(experts.at(3).stats.sum, 8);
    EXPECT_EQ(experts.at(3).stats.squares, 34);
    EXPECT_EQ(experts.at(3).stats.fourths, 81 + 625);
    EXPECT_TRUE(experts.at(4).is_constant());
    EXPECT_FALSE(experts.at(3).is_constant());
  }
}

TEST(ExpertValuesTest, ATensorOfOneExpertAndOneOfAllGiveTheSame) {
  const std::vector<float> values = {1, 2, 3, 4};
  std::vector<TensorEntry> tensors;
  for (int expert = 0; expert < 2; ++expert)
    tensors.push_back({{.name = fmt::format("m.layers.0.mlp.experts.{}.up.weight", expert), .shape = {1, 2}},
                       Role::kWeight,
                       Dtype::kF32});
  const ExpertCensus census = TakeCensus(tensors, {});
  ExpertValues gathered(tensors, census);
  for (uint32_t i = 0; i < 2; ++i) gathered.Add(i, std::as_bytes(std::span(values).subspan(2 * i, 2)));
  const auto& one_by_one = gathered.weights().begin()->second.experts;
  const auto all = Gather(values, 4);
  ASSERT_EQ(one_by_one.size(), all.size());
  for (const auto& [expert, value] : all) EXPECT_EQ(value.digest, one_by_one.at(expert).digest);
}

}  // namespace
}  // namespace cairn
