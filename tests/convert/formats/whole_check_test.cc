// The kind: a model that lacks a parameter altogether, half of a moment under the name of the whole, and an
// optimizer whose reader does not know its form all cover every element of the files once, and passed.
#include "convert/formats/whole_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ckpt/model/canonical_modules.h"
#include "convert/foreign/account.h"
#include "convert/formats/training/part_of_state.h"
#include "tests/support/made_source.h"

namespace cairn {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TensorTable Weights(const std::vector<ParameterSpec>& specs, const std::string& without = "") {
  TensorTable table;
  for (const ParameterSpec& spec : specs)
    if (spec.name != without) table.tensors.push_back({spec, Role::kWeight, Dtype::kF32});
  return table;
}

TEST(WholeCheckTest, FindsAPartOfAState) {
  const auto part = [](Role role, const Dims& shape) {
    TensorTable table = Weights({{.name = "w", .shape = {6, 4}}});
    table.tensors.push_back({{.name = "w", .shape = shape}, role, Dtype::kF32});
    return FirstPartOfState(table);
  };
  EXPECT_EQ(part(Role::kExpAvg, {3, 4}),
            "w/exp_avg is of another shape than its parameter: [3, 4], not [6, 4]");
  for (const Role role : {Role::kMaster, Role::kExpAvg, Role::kExpAvgSq, Role::kMomentumBuffer})
    for (const Dims& shape : {Dims{12}, Dims{1, 4}, Dims{6, 2}, Dims{7, 4}}) EXPECT_NE(part(role, shape), "");
  EXPECT_NE(part(*ParseRole("square_avg"), {3, 4}), "");
  for (const char* whole : {"exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg"})
    EXPECT_EQ(part(*ParseRole(whole), {6, 4}), "");
  EXPECT_EQ(part(Role::kStep, {}), "");
  EXPECT_EQ(part(Role::kExpAvgSq, {1}), "");               // a number of the whole parameter
  EXPECT_EQ(part(*ParseRole("exp_avg_sq_row"), {6}), "");  // transformers' Adafactor
  EXPECT_EQ(part(*ParseRole("col_var"), {1, 4}), "");      // torch's
  for (const char* row : {"exp_avg_sq_row", "row_var"})
    for (const Dims& shape : {Dims{3}, Dims{4}, Dims{3, 1}, Dims{1, 4}, Dims{6, 2}})
      EXPECT_NE(part(*ParseRole(row), shape), "");
  EXPECT_EQ(part(RoleNamed("exp_avg::scales").value(), {99}), "");  // of any shape
}

TEST(WholeCheckTest, OnlyBlocksOfBitsandbytesHaveAKnownShape) {
  const auto unknown = [](const char* name, const Dims& shape) {
    TensorTable table = Weights({{.name = "w", .shape = {60, 40}}});
    table.tensors.push_back({{.name = "w", .shape = shape}, RoleNamed(name).value(), Dtype::kF32});
    return FirstOfUnknownShape(table);
  };
  EXPECT_EQ(unknown("__bnb_optimizer_quant_state__.absmax1", {10}), "");
  EXPECT_EQ(unknown("absmax2", {2}), "");  // of 2048
  EXPECT_EQ(unknown("qmap1", {256}), "");
  EXPECT_EQ(unknown("z", {60, 40}), "");
  EXPECT_EQ(unknown("absmax1", {5}), "w/absmax1 is of another shape than its parameter: [5], not [60, 40]");
  EXPECT_NE(unknown("exp_avg::scales", {99}), "");
}

// GaLore's moments are the moments of a matrix that it projected. A rank that saves its own part saves that
// of vectors, too.
TEST(WholeCheckTest, MomentsOfLowRankAreNotDamage) {
  const auto kind = [](const std::vector<std::pair<Role, Dims>>& states, const Dims& parameter = {6, 4}) {
    TensorTable table = Weights({{.name = "w", .shape = parameter}, {.name = "v", .shape = {6}}});
    for (const auto& [role, shape] : states)
      table.tensors.push_back({{.name = "w", .shape = shape}, role, Dtype::kF32});
    ReaderOptions options;
    return CheckWhole(MadeSource({}, table.tensors, {}), options).kind();
  };
  const auto both = [&](const Dims& shape) {
    return kind({{Role::kExpAvg, shape}, {Role::kExpAvgSq, shape}});
  };
  EXPECT_EQ(both({2, 4}), StatusKind::kNotSupported);
  EXPECT_EQ(both({6, 1}), StatusKind::kNotSupported);
  EXPECT_EQ(both({7, 4}), StatusKind::kCorrupt);
  EXPECT_EQ(both({2, 2}), StatusKind::kCorrupt);
  EXPECT_EQ(kind({{Role::kExpAvg, {2, 4}}, {Role::kExpAvgSq, {6, 4}}}), StatusKind::kCorrupt);
  EXPECT_EQ(kind({{Role::kExpAvg, {2, 4}}}), StatusKind::kCorrupt);
  EXPECT_EQ(kind({{Role::kExpAvg, {3}}, {Role::kExpAvgSq, {3}}}, {6}), StatusKind::kCorrupt);
}

std::string Error(const StepInfo& info, const TensorTable& table,
                  const std::vector<std::string>& allow = {}) {
  ReaderOptions options;
  options.allow = allow;
  return CheckWhole(MadeSource(info, table.tensors, {}), options).message();
}

TEST(WholeCheckTest, EachRelaxationIsAFlag) {
  ModelShape shape{.layers = 1, .hidden = 8, .heads = 2, .vocab = 16, .modules = kLlamaModules};
  StepInfo info{.model = json{{"num_layers", 1},
                              {"hidden_size", 8},
                              {"num_attention_heads", 2},
                              {"vocab_size", 16},
                              {"gated_mlp", true},
                              {"activation", "silu"},
                              {"normalization", "RMSNorm"},
                              {"position_embedding", "rope"}}};
  const TensorTable without = Weights(GptSpecs(shape), "final_norm.weight");
  EXPECT_THAT(Error(info, without), HasSubstr("missing: final_norm.weight; --allow GLOB"));
  EXPECT_EQ(Error(info, without, {"final_*"}), "");
  info.state[kAccountKey] = {{kOptimizerLeft, {"optimizer.param_state.0"}}};
  const TensorTable whole = Weights(GptSpecs(shape));
  EXPECT_THAT(Error(info, whole),
              HasSubstr("a form that is not read: optimizer.param_state.0; --allow optimizer"));
  EXPECT_EQ(Error(info, whole, {"optimizer"}), "");
}

TEST(WholeCheckTest, APartThatTheHistoryAllowsIsNotMissing) {
  ModelShape shape{.layers = 1, .hidden = 8, .heads = 2, .vocab = 16, .positions = 4};
  Manifest manifest{.model = json{{"num_layers", 1},
                                  {"hidden_size", 8},
                                  {"num_attention_heads", 2},
                                  {"vocab_size", 16},
                                  {"max_position_embeddings", 4}}};
  const TensorTable without = Weights(GptSpecs(shape), "final_norm.bias");
  EXPECT_THAT(MissingParameters(without, manifest), ElementsAre("final_norm.bias"));
  manifest.history.push_back(AllowedLine("final_norm.bias"));
  EXPECT_THAT(MissingParameters(without, manifest), IsEmpty());
}

}  // namespace
}  // namespace cairn
