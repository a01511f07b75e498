#include "convert/formats/training/dcp_places.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

std::vector<std::string> Parts(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text)
    if (c == '/')
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

// "parameter role" of each, given by its path ("model/layers.0.weight") and its number of dimensions.
std::vector<std::string> Placed(const std::vector<std::pair<std::string, int>>& paths) {
  std::vector<DcpName> names;
  std::vector<std::string> joined;
  for (const auto& [path, rank] : paths) {
    std::string name = path;
    std::ranges::replace(name, '/', '.');
    names.push_back({name, Parts(path), rank});
    joined.push_back(name);
  }
  const std::vector<std::string_view> views(joined.begin(), joined.end());
  std::vector<std::string> placed;
  for (const DcpPlace& place : PlaceDcpTensors(names, DcpOptimizers(views)))
    placed.push_back(place.parameter + " " +
                     (place.training ? "training"
                      : place.role   ? std::string(Name(*place.role))
                                     : "?"));
  return placed;
}

TEST(DcpPlacesTest, NamesWeightsByModelAndStatesByParameter) {
  EXPECT_EQ(
      Placed({{"model/a.weight", 2}, {"optim/state/a.weight/exp_avg", 2}, {"optim/state/a.weight/step", 0}}),
      (std::vector<std::string>{"a.weight weight", "a.weight exp_avg", "a.weight step"}));
  EXPECT_EQ(Placed({{"model/_orig_mod.a.weight", 2}}), (std::vector<std::string>{"a.weight weight"}));
}

TEST(DcpPlacesTest, OptimizersOfUnknownStatesAndNumbersAreNotRead) {
  const auto unread = [](const std::string& state, const std::string& weight) {
    const std::vector<DcpName> names = {{weight, {weight}, 2}, {state, Parts(state), 2}};
    const std::set<std::string> optimizers = {"optim."};
    return UnreadDcpOptimizers(names, PlaceDcpTensors(names, optimizers), optimizers);
  };
  const std::set<std::string> all = {"optim."};
  EXPECT_EQ(unread("optim.state.a.weight.exp_avg", "a.weight"), std::set<std::string>());
  EXPECT_EQ(unread("optim.state.a.weight.exp_avg::scales", "a.weight"), std::set<std::string>());
  EXPECT_EQ(unread("optim.state.a.weight.__bnb_optimizer_quant_state__.absmax1", "a.weight"),
            std::set<std::string>());
  EXPECT_EQ(unread("optim.state.a.weight.state1.codes", "a.weight"), all);
  EXPECT_EQ(unread("optim.state.0.exp_avg", "a.weight"), all);
  EXPECT_EQ(unread("optim.state.0.exp_avg", "0"), std::set<std::string>()) << "a weight of that name";
}

TEST(DcpPlacesTest, ModelsWithSharedNamesKeepFullNames) {
  EXPECT_EQ(Placed({{"model/a.weight", 2}, {"ema/a.weight", 2}}),
            (std::vector<std::string>{"model.a.weight weight", "ema.a.weight weight"}));
}

TEST(DcpPlacesTest, KeepsWrappersThatDistinguishWeights) {
  EXPECT_EQ(Placed({{"model/a._orig_mod.b", 2}, {"model/a.b", 2}}),
            (std::vector<std::string>{"model.a._orig_mod.b weight", "model.a.b weight"}));
}

TEST(DcpPlacesTest, RemovesWrappersOnlyAsWholeParts) {
  EXPECT_EQ(WithoutModuleWrappers("_orig_mod.a._fsdp_wrapped_module._checkpoint_wrapped_module.b"), "a.b");
  EXPECT_EQ(WithoutModuleWrappers("my_orig_mod.weight"), "my_orig_mod.weight");
}

TEST(DcpPlacesTest, StatesOfTwoOptimizersAreDistinguished) {
  EXPECT_EQ(Placed({{"actor/a", 2},
                    {"actor_optim/state/a/exp_avg", 2},
                    {"critic/a", 2},
                    {"critic_optim/state/a/exp_avg", 2},
                    {"critic_optim/state/b/exp_avg", 2}}),
            (std::vector<std::string>{"actor.a weight", "actor_optim.a exp_avg", "critic.a weight",
                                      "critic_optim.a exp_avg", "critic_optim.b exp_avg"}));
  EXPECT_EQ(Placed({{"model/a", 2}, {"muon/state/a/momentum_buffer", 2}, {"adam/state/b/exp_avg", 2}})[1],
            "a momentum_buffer");
}

TEST(DcpPlacesTest, AnUnknownStateNeedsParamGroups) {
  EXPECT_EQ(Placed({{"model/a", 2}, {"optim/state/a/soap_q", 2}, {"optim/param_groups/0/lr", 0}}),
            (std::vector<std::string>{"a weight", "a soap_q", "optim.param_groups.0.lr training"}));
  EXPECT_EQ(Placed({{"model/a", 2}, {"optim/state/a/soap_q", 2}})[1], "soap_q weight");
}

TEST(DcpPlacesTest, UntrainedNumbersAreTrainingState) {
  EXPECT_EQ(Placed({{"a.weight", 2}, {"logit_scale", 0}})[1], "logit_scale training");
  EXPECT_EQ(Placed({{"a.weight", 2}, {"logit_scale", 0}, {"optim/state/logit_scale/exp_avg", 0}})[1],
            "logit_scale weight");
  EXPECT_EQ(Placed({{"a.weight", 2}, {"dataloader/buffer", 2}})[1], "dataloader.buffer training");
}

}  // namespace
}  // namespace cairn
