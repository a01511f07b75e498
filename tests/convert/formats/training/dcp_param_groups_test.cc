// Items as get_optimizer_state_dict() of torch 2.11 names them, with flatten_optimizer_state_dict and
// without.
#include "convert/formats/training/dcp_param_groups.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

using nlohmann::json;

class DcpParamGroupsTest : public testing::Test {
 protected:
  static std::string NameOf(const std::vector<std::string>& path) {
    std::string name;
    for (const std::string& part : path) name += (name.empty() ? "" : ".") + part;
    return name;
  }
  void Add(const std::vector<std::string>& path, const json& value) {
    const std::string name = NameOf(path);
    EXPECT_TRUE(DcpParamGroups::IsOne(name, path)) << name;
    groups_.Add(name, path, value);
  }
  json Groups(bool apart = false) const {
    json state = json::object();
    groups_.PutInto(state, apart);
    return state;
  }

  DcpOptimizers optimizers_;
  DcpParamGroups groups_{optimizers_};
};

TEST_F(DcpParamGroupsTest, AListNamesTheMembersOfItsGroup) {
  Add({"optim", "param_groups", "1", "lr"}, 0.5);
  Add({"optim", "param_groups", "0", "lr"}, 0.25);
  Add({"optim", "param_groups", "0", "betas"}, {0.9, 0.95});
  Add({"optim", "param_groups", "0", "params"}, {"_orig_mod.a.weight", "b.weight"});
  Add({"optim", "param_groups", "1", "params"}, {"a.bias"});
  EXPECT_EQ(Groups(), json({{"param_groups",
                             {{{"lr", 0.25}, {"betas", {0.9, 0.95}}, {"params", {"a.weight", "b.weight"}}},
                              {{"lr", 0.5}, {"params", {"a.bias"}}}}}}));
}

TEST_F(DcpParamGroupsTest, FlattenedParametersWithEqualValuesFormAGroup) {
  for (const char* name : {"a.weight", "b.weight"}) {
    Add({"optim", std::string("param_groups.") + name + ".lr"}, 0.5);
    Add({"optim", std::string("param_groups.") + name + ".weight_decay"}, 0.1);
  }
  Add({"optim", "param_groups._orig_mod.a.bias.lr"}, 0.5);
  Add({"optim", "param_groups._orig_mod.a.bias.weight_decay"}, 0.0);
  EXPECT_EQ(Groups(), json({{"param_groups",
                             {{{"lr", 0.5}, {"weight_decay", 0.1}, {"params", {"a.weight", "b.weight"}}},
                              {{"lr", 0.5}, {"weight_decay", 0.0}, {"params", {"a.bias"}}}}}}));
}

TEST_F(DcpParamGroupsTest, AFlattenedKeyBeginsBehindAKnownParameter) {
  optimizers_.parameters = {"a.weight"};
  Add({"optim", "param_groups.a.weight.toy.lr"}, 0.5);
  EXPECT_EQ(Groups(), json({{"param_groups", {{{"toy.lr", 0.5}, {"params", {"a.weight"}}}}}}));
}

TEST_F(DcpParamGroupsTest, GroupsOfTwoOptimizersAreConcatenated) {
  Add({"optim", "muon", "param_groups", "0", "lr"}, 0.5);
  Add({"optim", "muon", "param_groups", "0", "params"}, {"a.weight"});
  Add({"optim", "adam", "param_groups", "0", "lr"}, 0.25);
  Add({"optim", "adam", "param_groups", "0", "params"}, {"a.bias"});
  EXPECT_EQ(Groups()["param_groups"],
            json({{{"lr", 0.25}, {"params", {"a.bias"}}}, {{"lr", 0.5}, {"params", {"a.weight"}}}}));
}

TEST_F(DcpParamGroupsTest, SharedNamesOfTwoOptimizersAreResolvedOrUnknown) {
  Add({"actor_optim", "param_groups", "0", "params"}, {"a"});
  Add({"critic_optim", "param_groups.a.lr"}, 0.5);
  const json apart = Groups(true)["param_groups"];
  ASSERT_EQ(apart.size(), 2u);
  EXPECT_EQ(apart[0]["params"], json({"actor_optim.a"}));
  EXPECT_EQ(apart[1]["params"], json({"critic_optim.a"}));
  const json together = Groups()["param_groups"];
  EXPECT_EQ(together.size(), 2u);
  for (const json& group : together) EXPECT_TRUE(group["params"].is_null());
}

// Numbers do not identify members: a training of another program may number its parameters differently.
TEST_F(DcpParamGroupsTest, MembersWithoutNamesAreUnknown) {
  Add({"optim", "param_groups", "0", "params"}, {0, 1});
  Add({"optim", "param_groups", "1", "lr"}, 0.5);
  const json groups = Groups()["param_groups"];
  EXPECT_EQ(groups[0]["params"], nullptr);
  EXPECT_EQ(groups[1], json({{"lr", 0.5}, {"params", nullptr}}));
}

TEST_F(DcpParamGroupsTest, OtherItemsAreNotGroups) {
  for (const auto& path : std::vector<std::vector<std::string>>{{"optim", "state", "a.weight", "step"},
                                                                {"optim", "param_groups", "x", "lr"},
                                                                {"optim", "param_groups", "-1", "lr"},
                                                                {"optim", "param_groups", "1000000", "lr"},
                                                                {"optim", "myparam_groups.a.lr"},
                                                                {"optim", "param_groups."},
                                                                {"iteration"}})
    EXPECT_FALSE(DcpParamGroups::IsOne(NameOf(path), path)) << NameOf(path);
  EXPECT_EQ(Groups(), json::object());
}

}  // namespace
}  // namespace cairn
