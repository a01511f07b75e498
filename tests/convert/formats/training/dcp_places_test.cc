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
  for (const auto& [path, rank] : paths) {
    std::string name = path;
    std::ranges::replace(name, '/', '.');
    names.push_back({name, Parts(path), rank});
  }
  std::vector<std::string> placed;
  for (const DcpPlace& place : PlaceDcpTensors(names, DcpOptimizersOf(names)))
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
    const std::vector<DcpName> names = {
        {weight, {weight}, 2}, {"optim.state." + state, {}, 2}, {"optim.param_groups.0.lr", {}, 0}};
    const DcpOptimizers optimizers = DcpOptimizersOf(names);
    const auto found = UnreadDcpOptimizers(names, PlaceDcpTensors(names, optimizers), optimizers);
    return found.empty() ? "" : found.at("optim.");
  };
  EXPECT_EQ(unread("a.weight.exp_avg", "a.weight"), "");
  EXPECT_EQ(unread("a.weight.exp_avg::scales", "a.weight"), "");
  EXPECT_EQ(unread("a.weight.state1.codes", "a.weight"), "");
  EXPECT_EQ(unread("a.weight.a/b", "a.weight"), "optim.state.a.weight.a/b") << "no name of a role";
  EXPECT_EQ(unread("b.weight.state1.codes", "a.weight"), "optim.state.b.weight.state1.codes");
  EXPECT_EQ(unread("0.exp_avg", "a.weight"), "optim.state.0.exp_avg");
  EXPECT_EQ(unread("0.exp_avg", "0"), "") << "a weight of that name";
}

TEST(DcpPlacesTest, AKeyBeginsBehindTheLongestNameOfAParameter) {
  EXPECT_EQ(Placed({{"model/w", 2},
                    {"model/w.weight", 2},
                    {"optim/state/w/toy.omega", 2},
                    {"optim/state/w.weight/exp_avg", 2},
                    {"optim/state/w.weight/a/b/c", 2},
                    {"optim/param_groups/0/lr", 0}}),
            (std::vector<std::string>{"w weight", "w.weight weight", "w toy.omega", "w.weight exp_avg",
                                      "w.weight a.b.c", "optim.param_groups.0.lr training"}));
  EXPECT_EQ(Placed({{"model/_orig_mod.a.parametrizations.weight.original0", 2},
                    {"optim/state.a.parametrizations.weight.original0.a.b", 2},
                    {"optim/param_groups.a.parametrizations.weight.original0.lr", 0}})[1],
            "a.parametrizations.weight.original0 a.b");
  const std::string blocks = "__bnb_optimizer_quant_state__";
  EXPECT_EQ(Placed({{"optim/state/a.weight/" + blocks + "/absmax1", 1}, {"optim/param_groups/0/lr", 0}})[0],
            "a.weight " + blocks + ".absmax1")
      << "without weights";
  EXPECT_EQ(Placed({{"optim/state.a.weight.b.c", 1}, {"optim/param_groups.a.weight.lr", 0}})[0],
            "a.weight b.c")
      << "flattened, without weights";
}

TEST(DcpPlacesTest, TheFormOfAStateDictSaysWhichKeysHaveDots) {
  DcpForm form{.dotted = {"toy.omega"}};
  form = DcpFormOf({{kDcpForm, ToJson(form)}});
  EXPECT_EQ(form.State("w", "toy.omega"), Parts("optimizer/state/w/toy.omega"));
  EXPECT_EQ(form.State("w", "a.b"), Parts("optimizer/state/w/a/b"));
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

TEST(DcpPlacesTest, AModelsOwnDictHasItsNumbers) {
  EXPECT_EQ(Placed({{"a.weight", 2}, {"logit_scale", 0}})[1], "logit_scale weight");
  EXPECT_EQ(Placed({{"model/a.weight", 2}, {"model/logit_scale", 0}})[1], "logit_scale weight");
  EXPECT_EQ(Placed({{"a.weight", 2}, {"gain", 1}})[1], "gain weight");
  EXPECT_EQ(Placed({{"a.weight", 2}, {"step", 0}})[1], "step training") << "how far a training was";
  EXPECT_EQ(Placed({{"a", 1}, {"b", 1}})[1], "b weight") << "nothing shows what is a model";
}

TEST(DcpPlacesTest, ValuesThatATrainingRemembersAreNotWeights) {
  const auto beside = [](const std::string& path, int rank) {
    return Placed({{"model/a.weight", 2}, {path, rank}})[1].substr(path.size() + 1);
  };
  EXPECT_EQ(beside("extra/best", 0), "training");
  EXPECT_EQ(beside("extra/best", 1), "training");
  EXPECT_EQ(beside("best_loss", 1), "training");
  EXPECT_EQ(beside("dataloader/buffer", 2), "training");
  EXPECT_EQ(Placed({{"a.weight", 2}, {"extra/best", 1}})[1], "extra.best training") << "beside a flat model";
  EXPECT_EQ(Placed({{"model/a.weight", 2}, {"head/w", 2}, {"head/b", 1}})[2], "b weight");
  EXPECT_EQ(Placed({{"model/a.weight", 2}, {"norm/bias", 1}})[1], "bias weight");
  EXPECT_EQ(Placed({{"app/model/a", 2},
                    {"app/extra/best", 1},
                    {"app/optim/state/a/exp_avg", 2},
                    {"app/optim/param_groups/0/lr", 0}})[1],
            "app.extra.best training");
  EXPECT_EQ(Placed({{"app/model/a.weight", 2}, {"epoch", 0}, {"app/optim/param_groups/0/lr", 0}})[1],
            "epoch training");
  EXPECT_EQ(Placed({{"net/gain", 1}, {"log/loss", 1}, {"optim/state/gain/exp_avg", 1}}),
            (std::vector<std::string>{"gain weight", "log.loss training", "gain exp_avg"}));
}

}  // namespace
}  // namespace cairn
