// The parts of an optimizer that a target writes, refuses by name, or leaves out if allowed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/formats/deepspeed/zero_writer.h"
#include "convert/formats/systems.h"
#include "convert/formats/training/group_members.h"
#include "convert/formats/training/training_state.h"
#include "convert/formats/training/training_tensors.h"
#include "tests/support/made_source.h"
#include "tests/support/make_step.h"

namespace cairn {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// Only its plan is read.
class Source final : public MadeSource {
 public:
  Source(const std::vector<ParameterSpec>& specs, json state)
      : MadeSource({.identity = {}, .topology = {}, .state = std::move(state)}, {}, {}) {
    for (const ParameterSpec& spec : specs)
      for (const Role& role : {Role::kWeight, Role::kMaster, Role::kExpAvg, Role::kExpAvgSq})
        catalog_.tensors.push_back({spec, role, role == Role::kWeight ? Dtype::kBF16 : Dtype::kF32});
  }
  void Add(const ParameterSpec& spec, Role role) { catalog_.tensors.push_back({spec, role, Dtype::kF32}); }
  Manifest& facts() { return manifest_; }
  std::vector<TensorEntry>& tensors() { return catalog_.tensors; }
};

// Four parameters with unusual names; timm's order: vectors without weight decay first.
std::vector<ParameterSpec> PlainSpecs() {
  return {{.name = "a.weight", .shape = {6, 5}},
          {.name = "a.bias", .shape = {6}},
          {.name = "b.weight", .shape = {5, 6}},
          {.name = "b.bias", .shape = {5}}};
}

json VectorsThenMatrices() {
  return {{"iteration", 3},
          {"optimizer_step", 3},
          {"param_groups",
           {{{"lr", 0.5}, {"weight_decay", 0.0}, {"params", {"b.bias", "a.bias"}}},
            {{"lr", 0.5}, {"weight_decay", 0.25}, {"params", {"a.weight", "b.weight"}}}}}};
}

Result<TargetFiles> Plan(const char* format, const Source& source, TargetOptions options = {}) {
  return FindSystem(format)->plan(source, options);
}

std::string RefusalBy(const char* format, const Source& source, TargetOptions options = {}) {
  const auto planned = Plan(format, source, options);
  EXPECT_FALSE(planned.ok()) << format;
  return planned.status().message();
}

TrainingTensors TensorsOf(const Source& source) {
  return ChooseTrainingTensors(source, std::nullopt).value();
}

TEST(OptimizerGroupsTest, FollowTheSource) {
  const Source source(PlainSpecs(), VectorsThenMatrices());
  const auto groups = GroupsOfSource(source.manifest().state["param_groups"], TensorsOf(source));
  ASSERT_TRUE(groups.ok()) << groups.status().message();
  EXPECT_THAT(groups->MembersOf(0), ElementsAre("b.bias", "a.bias"));
  EXPECT_THAT(groups->MembersOf(1), ElementsAre("a.weight", "b.weight"));
  EXPECT_EQ(groups->hyper[1], json({{"lr", 0.5}, {"weight_decay", 0.25}}));
}

TEST(OptimizerGroupsTest, UnnamedPairsAreMatricesThenVectorsOthersAreRefused) {
  Source source(PlainSpecs(), {{"iteration", 3}, {"param_groups", {{{"lr", 1}}, {{"lr", 2}}}}});
  const auto groups = GroupsOfSource(source.manifest().state["param_groups"], TensorsOf(source));
  EXPECT_THAT(groups->MembersOf(1), ElementsAre("a.bias", "b.bias"));
  for (auto& group : source.facts().state["param_groups"]) group["params"] = nullptr;
  for (const char* format : {"dcp", "megatron-deepspeed", "universal"})
    EXPECT_THAT(RefusalBy(format, source), HasSubstr("does not record which parameters are in which group"));
  source.facts().state["param_groups"][0]["params"] = {"a.weight", "b.weight"};
  EXPECT_THAT(RefusalBy("dcp", source), HasSubstr("a.bias has an optimizer's state but is in none"));
}

TEST(OptimizerGroupsTest, HyperParametersFollowTheirParameters) {
  const Source source(PlainSpecs(), VectorsThenMatrices());
  const TrainingTensors tensors = TensorsOf(source);
  TrainingState state;
  state.groups = GroupsOfSource(source.manifest().state["param_groups"], tensors).value();
  const Status parted = PartGroups(tensors, 2, MatricesThenVectors, false, state);
  ASSERT_TRUE(parted.ok()) << parted.message();
  EXPECT_THAT(state.groups.MembersOf(0), ElementsAre("a.weight", "b.weight"));
  EXPECT_EQ(state.groups.hyper[0]["weight_decay"], 0.25);
  EXPECT_EQ(state.groups.hyper[1]["weight_decay"], 0.0);
  const auto one = [](const ParameterSpec&) { return size_t{0}; };
  EXPECT_THAT(PartGroups(tensors, 1, one, false, state).message(),
              HasSubstr("a.weight and a.bias differ in the optimizer's weight_decay"));
  EXPECT_EQ(state.notes, std::vector<std::string>());
  EXPECT_TRUE(PartGroups(tensors, 1, one, true, state).ok());
  EXPECT_EQ(state.groups.hyper[0]["weight_decay"], 0.25);
  EXPECT_THAT(state.notes, ElementsAre(HasSubstr("weight_decay of a.bias, weight_decay of b.bias")));
  EXPECT_THAT(RefusalBy("megatron-deepspeed", source, {.param_groups = 1}), HasSubstr("--allow optimizer"));
  const auto planned = Plan("megatron-deepspeed", source, {.param_groups = 1, .allow_optimizer = true});
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const nlohmann::json history = HistoryWith(source.manifest(), "megatron-deepspeed", planned->notes);
  ASSERT_EQ(history.size(), 1U);
  EXPECT_THAT(history[0].get<std::string>(),
              AllOf(HasSubstr("not the weight_decay of a.bias"), HasSubstr("(--allow optimizer)")));
}

TEST(OptimizerGroupsTest, DeepSpeedsOrderFollowsTheSourceOrRoundRobin) {
  const Source source(PlainSpecs(), VectorsThenMatrices());
  const TrainingTensors tensors = TensorsOf(source);
  TrainingState state = TrainingStateOf(source);
  state.groups = GroupsOfSource(state.param_groups, tensors).value();
  std::vector<LocalTensor> held;
  for (size_t i = 0; i < 4; ++i) held.push_back({{.module = {}, .shape = {}, .parts = {{{}, i}}}});
  ZeroJob job{.tensors = tensors, .state = state, .topology = {}, .directory = "", .source_order = true};
  EXPECT_THAT(GroupsOf(job, held), ElementsAre(ElementsAre(3, 1), ElementsAre(0, 2)));
  EXPECT_THAT(RoundRobin({0, 1, 2, 3, 4}, 2), ElementsAre(0, 2, 4, 1, 3));
  EXPECT_THAT(WithoutRoundRobin({"0", "2", "4", "1", "3"}, 2), ElementsAre("0", "1", "2", "3", "4"));
}

TEST(OptimizerStatesTest, StepsByParameterAreKeptOrRefused) {
  Source source(PlainSpecs(), VectorsThenMatrices());
  for (ParameterSpec spec : PlainSpecs()) {
    spec.shape = {};
    source.Add(spec, Role::kStep);
  }
  EXPECT_TRUE(Plan("dcp", source).ok());
  EXPECT_TRUE(Plan("universal", source).ok());
  EXPECT_THAT(RefusalBy("megatron-deepspeed", source), HasSubstr("steps that differ between parameters"));
  const auto allowed = Plan("megatron-deepspeed", source, {.allow_optimizer = true});
  ASSERT_TRUE(allowed.ok()) << allowed.status().message();
  EXPECT_THAT(allowed->notes, testing::Contains(HasSubstr("all parameters get step 3")));
}

// The names of the tensors that have a place in the planned files.
std::string Placed(const Result<TargetFiles>& planned) {
  EXPECT_TRUE(planned.ok()) << planned.status().message();
  std::string names;
  for (const WrittenTensor& tensor : planned->target.tensors)
    if (tensor.read_back) names += DisplayName(tensor.entry) + " ";
  return names;
}

TEST(OptimizerStatesTest, EveryStateOfItsParametersShapeHasAPlace) {
  Source source(PlainSpecs(), VectorsThenMatrices());
  const Role anything = RoleNamed("anything").value();
  source.Add(PlainSpecs()[0], anything);
  for (const char* format : {"dcp", "universal"})
    EXPECT_THAT(Placed(Plan(format, source)), HasSubstr("a.weight/anything"));
  EXPECT_THAT(RefusalBy("megatron-deepspeed", source), HasSubstr("a.weight and b.weight share a group"));
  source.Add(PlainSpecs()[2], anything);
  EXPECT_THAT(Placed(Plan("megatron-deepspeed", source)), HasSubstr("b.weight/anything"));
}

TEST(OptimizerStatesTest, StatesWithoutAPlaceAreRefusedOrLeftOutByName) {
  Source source(PlainSpecs(), VectorsThenMatrices());
  ParameterSpec row = PlainSpecs()[0];
  row.shape = {6};
  source.Add(row, *ParseRole("exp_avg_sq_row"));
  EXPECT_THAT(Placed(Plan("dcp", source)), HasSubstr("a.weight/exp_avg_sq_row"));
  for (const char* format : {"megatron-deepspeed", "universal"}) {
    EXPECT_THAT(
        RefusalBy(format, source),
        HasSubstr("a.weight: the optimizer's exp_avg_sq_row has shape [6], and the format holds states "
                  "of the parameter's, [6, 5]; --allow optimizer leaves it out"));
    const auto planned = Plan(format, source, {.allow_optimizer = true});
    EXPECT_THAT(Placed(planned), AllOf(HasSubstr("a.weight/exp_avg "), Not(HasSubstr("exp_avg_sq_row"))));
    EXPECT_THAT(planned->notes, testing::Contains("allowed: the optimizer's exp_avg_sq_row is left out"));
  }
}

TEST(OptimizerStatesTest, AnUnknownStepIsNotZero) {
  json state = VectorsThenMatrices();
  state.erase("iteration");
  state.erase("optimizer_step");
  const Source source(PlainSpecs(), state);
  for (const char* format : {"dcp", "megatron-deepspeed", "universal"})
    EXPECT_THAT(RefusalBy(format, source), HasSubstr("number of updates"));
  EXPECT_TRUE(Plan("dcp", source, {.allow_optimizer = true}).ok());
}

TEST(OptimizerStatesTest, DefaultsAreNotWrittenSilently) {
  const Source source(PlainSpecs(), {{"iteration", 3}});
  for (const char* format : {"dcp", "megatron-deepspeed", "universal"})
    EXPECT_THAT(Plan(format, source)->notes, testing::Contains(HasSubstr("lr 0.001, betas 0.9 and 0.999")));
}

json Decays(double matrices, double vectors) {
  return json::array({json({{"weight_decay", matrices}}), json({{"weight_decay", vectors}})});
}

class MegatronGroupsTest : public testing::Test {
 protected:
  Source Gpt(json groups) {
    Source source(SpecsOf({}),
                  {{"iteration", 3}, {"optimizer_step", 3}, {"param_groups", std::move(groups)}});
    source.facts().model = RecipeOf({}, {}).model;
    return source;
  }
};

TEST_F(MegatronGroupsTest, FollowMegatronsRuleForStepsOfOtherPrograms) {
  EXPECT_TRUE(Plan("megatron", Gpt(Decays(0.1, 0.0))).ok());
  EXPECT_THAT(RefusalBy("megatron", Gpt(Decays(0.0, 0.1))),
              HasSubstr("weight decay 0.1 for vectors and 0 for matrices"));
  json by_part = {{{"lr", 1}, {"params", json::array({"embedding.word.weight"})}},
                  {{"lr", 2}, {"params", json::array()}}};
  for (const ParameterSpec& spec : SpecsOf({}))
    if (spec.name != "embedding.word.weight") by_part[1]["params"].push_back(spec.name);
  for (const char* format : {"megatron", "torch-dist"})
    EXPECT_THAT(
        RefusalBy(format, Gpt(by_part)),
        HasSubstr("embedding.word.weight and embedding.position.weight differ in the optimizer's lr"));
}

TEST_F(MegatronGroupsTest, FusedTensorsOfAUniversalCheckpointShareOneStep) {
  Source source = Gpt(Decays(0.1, 0.0));
  EXPECT_TRUE(Plan("universal", source).ok());
  for (ParameterSpec spec : SpecsOf({})) {
    spec.shape = {};
    source.Add(spec, Role::kStep);
  }
  EXPECT_THAT(RefusalBy("universal", source), HasSubstr("steps that differ between parameters"));
  EXPECT_TRUE(Plan("universal", source, {.allow_optimizer = true}).ok());
}

// A GPT of one optimizer's state, which has the parameters that `has` takes.
Source Only(Source source, Role role, const std::function<bool(const TensorEntry&)>& has) {
  auto& tensors = source.tensors();
  std::erase_if(tensors, [&](const TensorEntry& t) { return t.role == Role::kExpAvg && has(t); });
  for (TensorEntry& tensor : tensors)
    if (tensor.role == Role::kExpAvgSq && has(tensor)) tensor.role = role;
  return source;
}

TEST_F(MegatronGroupsTest, OtherOptimizersThanAdamHaveAPlaceUnlessTheyAreDistributed) {
  const auto all = [](const TensorEntry&) { return true; };
  json groups = Decays(0.1, 0.0);
  for (auto& group : groups) group["momentum"] = 0.9;
  const Source sgd = Only(Gpt(groups), Role::kMomentumBuffer, all);
  for (const char* format : {"megatron", "torch-dist"}) {
    EXPECT_THAT(Placed(Plan(format, sgd)), HasSubstr("layers.0.mlp.up.weight/momentum_buffer"));
    EXPECT_THAT(RefusalBy(format, sgd, {.topology = {.zero = 1}}),
                HasSubstr("the format has no place for the optimizer's momentum_buffer"));
  }
}

TEST_F(MegatronGroupsTest, MuonAndAdamAreTwoOptimizers) {
  const auto in_layers = [](const TensorEntry& t) {
    return t.spec.is_matrix() && t.spec.name.starts_with("layers.");
  };
  json groups = {{{"wd_mult", 1.0}, {"momentum", 0.9}}, {{"wd_mult", 1.0}}, {{"wd_mult", 0.0}}};
  Source source = Only(Gpt(groups), Role::kMomentumBuffer, in_layers);
  PutMembersByMegatronsRule(source.catalog(), groups);
  EXPECT_THAT(groups[0]["params"], testing::Contains("layers.0.mlp.up.weight"));
  EXPECT_THAT(groups[1]["params"], testing::Contains("embedding.word.weight"));
  source.facts().state["param_groups"] = groups;
  EXPECT_THAT(Placed(Plan("torch-dist", source)), AllOf(HasSubstr("layers.0.mlp.up.weight/momentum_buffer"),
                                                        HasSubstr("final_norm.weight/exp_avg_sq")));
  EXPECT_THAT(RefusalBy("megatron", source), HasSubstr("torch-dist holds them"));
}

TEST_F(MegatronGroupsTest, MalformedValuesDoNotThrow) {
  json groups = Decays(0.1, 0.0);
  groups[1]["weight_decay"] = "none";
  EXPECT_TRUE(Plan("megatron", Gpt(groups)).ok());
  for (const char* format : {"dcp", "megatron", "megatron-deepspeed", "universal"})
    EXPECT_THAT(RefusalBy(format, Gpt({Decays(0.1, 0.0)[0], 7})), HasSubstr("has a group that is number"));
  Source source = Gpt(Decays(0.1, 0.0));
  source.facts().model.position_embedding = 7;
  EXPECT_THAT(RefusalBy("megatron-deepspeed", source), HasSubstr("position_embedding"));
}

TEST_F(MegatronGroupsTest, MembersFollowFromMegatronsEntries) {
  json groups = {{{"wd_mult", 1.0}, {"default_config", true}},
                 {{"wd_mult", 1.0}, {"default_config", false}, {"max_lr", 0.3}},
                 {{"wd_mult", 0.0}, {"default_config", true}}};
  const Source source = Gpt(groups);
  PutMembersByMegatronsRule(source.catalog(), groups);
  EXPECT_EQ(groups[1]["params"], json::array({"embedding.word.weight"}));
  EXPECT_THAT(groups[0]["params"], testing::Contains("embedding.position.weight"));
  EXPECT_THAT(groups[2]["params"], testing::Contains("final_norm.bias"));
  json same = {{{"wd_mult", 1.0}}, {{"wd_mult", 1.0}}, {{"wd_mult", 0.0}}};
  PutMembersByMegatronsRule(source.catalog(), same);
  EXPECT_TRUE(same[0]["params"].is_null());
}

}  // namespace
}  // namespace cairn
