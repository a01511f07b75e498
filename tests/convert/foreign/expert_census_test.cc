#include "convert/foreign/expert_census.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TensorEntry Weight(std::string name, Dims shape, Role role = Role::kWeight) {
  return {{.name = std::move(name), .shape = shape}, role, Dtype::kF32};
}

// Experts one by one, without those in `missing`, and a router of `rows`.
std::vector<TensorEntry> OneByOne(uint64_t experts, uint64_t rows,
                                  const std::vector<uint64_t>& missing = {}) {
  std::vector<TensorEntry> tensors;
  if (rows > 0) tensors.push_back(Weight("model.layers.2.mlp.router.gate.weight", {rows, 16}));
  tensors.push_back(Weight("model.layers.2.mlp.shared_experts.gate_proj.weight", {24, 16}));
  for (uint64_t expert = 0; expert < experts; ++expert)
    for (const char* part : {"up", "down"})
      if (std::ranges::find(missing, expert) == missing.end() || part[0] == 'u')
        tensors.push_back(
            Weight(fmt::format("model.layers.2.mlp.experts.{}.{}.weight", expert, part), {24, 16}));
  return tensors;
}

TEST(ExpertCensusTest, CountsExpertsOneByOneAndInOneTensor) {
  const ExpertCensus one_by_one = TakeCensus(OneByOne(4, 4), {});
  const ExpertCensus fused = TakeCensus({Weight("model.layers.2.mlp.experts.up", {4, 24, 16}),
                                         Weight("model.layers.2.mlp.experts.up_bias", {4, 24})},
                                        {});
  for (const ExpertCensus* census : {&one_by_one, &fused}) {
    ASSERT_EQ(census->mixtures.size(), 1u);
    EXPECT_EQ(census->mixtures[0].name, "model.layers.2.mlp");
    EXPECT_EQ(census->mixtures[0].experts, 4u);
    EXPECT_THAT(census->lost, IsEmpty());
    EXPECT_EQ(ToString(census->mixtures), "4 experts in one layer");
  }
  EXPECT_EQ(one_by_one.tensors.size(), 8u);
  EXPECT_EQ(TakeCensus({Weight("decoder.layers.0.mlp.experts.local_experts.3.linear_fc1.weight", {8, 8})}, {})
                .mixtures[0]
                .experts,
            4u);
  EXPECT_THAT(TakeCensus({Weight("model.layers.2.mlp.up.weight", {4, 24})}, {}).mixtures, IsEmpty());
}

TEST(ExpertCensusTest, NamesAnExpertThatLacksAPart) {
  EXPECT_THAT(TakeCensus(OneByOne(4, 4, {1, 2}), {}).lost,
              ElementsAre("model.layers.2.mlp: 2 of 4 experts have down.weight; experts without it: 1, 2"));
}

// Quantized experts beside others, and adapters on some of them, are whole.
TEST(ExpertCensusTest, APartInAnotherFormIsNotMissing) {
  const std::pair<std::vector<std::string>, std::vector<std::string>> forms[] = {
      {{"w1.weight"}, {"w1.weight_packed", "w1.weight_scale"}},
      {{"w1.weight"}, {"w1.weight", "w1.weight.absmax", "w1.weight.quant_state.bitsandbytes__nf4"}},
      {{"w1.weight"}, {"w1.weight", "w1.lora_A.default.weight", "w1.lora_B.default.weight"}},
      {{"mlp.w1.qweight", "mlp.w1.scales"}, {"mlp.w1.weight"}}};
  for (const auto& [one, other] : forms) {
    std::vector<TensorEntry> tensors = {Weight("a.gate.weight", {3, 16})};
    for (uint64_t expert = 0; expert < 3; ++expert)
      for (const std::string& part : expert == 1 ? other : one)
        tensors.push_back(Weight(fmt::format("a.experts.{}.{}", expert, part), {8, 8}));
    EXPECT_THAT(TakeCensus(tensors, {}).lost, IsEmpty()) << other[0];
  }
  std::vector<TensorEntry> adapter;
  for (const int expert : {0, 2, 5})
    adapter.push_back(Weight(fmt::format("a.experts.{}.up.lora_A.weight", expert), {4, 32}));
  EXPECT_THAT(TakeCensus(adapter, json{{"num_experts", 8}}).lost, IsEmpty());
}

TEST(ExpertCensusTest, APrunedMixtureIsANote) {
  const ExpertCensus census = TakeCensus(OneByOne(3, 3), json{{"config", {{"num_experts", 4}}}});
  EXPECT_THAT(census.lost, IsEmpty());
  EXPECT_THAT(census.notes,
              ElementsAre(HasSubstr("pruned: files and router have 3 of the configuration's 4")));
}

TEST(ExpertCensusTest, ComparesTheNumberWithTheConfigurationAndTheRouter) {
  const auto lost = [](uint64_t experts, uint64_t rows, const json& model) {
    return TakeCensus(OneByOne(experts, rows), model).lost;
  };
  EXPECT_THAT(lost(2, 4, {}),
              ElementsAre("model.layers.2.mlp: the files hold 2 experts, but the router has a row "
                          "for each of 4"));
  const json own = {{"config", {{"num_local_experts", 4}}}};
  const json part = {{"config", {{"text_config", {{"n_routed_experts", 4}}}}}};
  for (const json& model : {own, part}) {
    EXPECT_THAT(lost(2, 4, model), ElementsAre("model.layers.2.mlp: the files hold 2 of 4 experts"));
    EXPECT_THAT(lost(8, 8, model), ElementsAre(HasSubstr("hold 8 experts, the configuration has 4")));
    EXPECT_THAT(lost(4, 2, model), ElementsAre(HasSubstr("a row for each of 2")));
    EXPECT_THAT(lost(4, 6, model), IsEmpty());  // experts without parameters
  }
  EXPECT_THAT(lost(4, 0, {}), IsEmpty());
  for (const json& absurd : {json(0), json(-1), json("4"), json(nullptr), json::array({4})})
    EXPECT_THAT(lost(4, 4, json::object({{"num_experts", absurd}})), IsEmpty());
  for (const json& huge : {json(1e300), json(UINT64_MAX)})
    EXPECT_THAT(lost(4, 4, json::object({{"num_experts", huge}})),
                ElementsAre(HasSubstr("hold 4 of 1000000000000000000")));
}

// An optimizer makes no state for an expert that no token was routed to.
TEST(ExpertCensusTest, AStateOfFewerExpertsIsANote) {
  std::vector<TensorEntry> tensors = OneByOne(2, 2);
  tensors.push_back(Weight("model.layers.2.mlp.experts.0.up.weight", {24, 16}, Role::kExpAvg));
  const ExpertCensus census = TakeCensus(tensors, {});
  EXPECT_THAT(census.lost, IsEmpty());
  EXPECT_THAT(census.notes, ElementsAre(HasSubstr("1 of 2 experts have up.weight/exp_avg")));
}

TEST(ExpertCensusTest, NotesPredictionsThatTheFilesLack) {
  const json model = {{"num_layers", 3}, {"hugging_face", {{"config", {{"num_nextn_predict_layers", 1}}}}}};
  EXPECT_THAT(TakeCensus(OneByOne(2, 2), model).notes,
              ElementsAre(HasSubstr("multi-token prediction (layers: 1)")));
  for (const char* name : {"model.layers.3.enorm.weight", "mtp.layers.0.enorm.weight"}) {
    std::vector<TensorEntry> tensors = OneByOne(2, 2);
    tensors.push_back(Weight(name, {16}));
    EXPECT_THAT(TakeCensus(tensors, model).notes, IsEmpty()) << name;
  }
}

TEST(ExpertCensusTest, NumbersOfHostileNamesAreNotExperts) {
  for (const char* number : {"99999999999999999999", "1048576", "-1", "", "0x1"})
    EXPECT_THAT(TakeCensus({Weight(fmt::format("a.experts.{}.b", number), {2, 2})}, {}).mixtures, IsEmpty())
        << number;
  EXPECT_THAT(TakeCensus({Weight("experts.1.b", {2, 2})}, {}).mixtures, IsEmpty());
  EXPECT_THAT(TakeCensus({Weight("a.experts", {2, 2, 2})}, {}).mixtures, IsEmpty());
  // A missing expert is a number in a list, however many there are.
  EXPECT_THAT(TakeCensus({Weight("a.experts.1048575.b", {2, 2})}, {}).lost,
              ElementsAre("a: 1 of 1048576 experts have b; experts without it: 0, 1, 2, 3 and 1048571 more"));
}

}  // namespace
}  // namespace cairn
