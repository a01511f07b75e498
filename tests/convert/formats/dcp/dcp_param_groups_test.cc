// Items as get_optimizer_state_dict() of torch 2.11 names them, with flatten_optimizer_state_dict and
// without.
#include "convert/formats/dcp/dcp_param_groups.h"

#include <gtest/gtest.h>

#include "tests/support/pickled_json.h"

namespace cairn {
namespace {

using nlohmann::json;

std::string WithoutModule(std::string name) { return name.substr(name.starts_with("model.") ? 6 : 0); }

class DcpParamGroupsTest : public testing::Test {
 protected:
  static DcpBytes Item(std::vector<std::string> path) {
    DcpBytes bytes;
    for (const std::string& part : path) bytes.name += (bytes.name.empty() ? "" : ".") + part;
    bytes.path = std::move(path);
    return bytes;
  }
  void Add(std::vector<std::string> path, const json& value) {
    const DcpBytes bytes = Item(std::move(path));
    EXPECT_TRUE(DcpParamGroups::IsOne(bytes)) << bytes.name;
    groups_.Add(bytes, *PickledJson(value)->root, WithoutModule);
  }
  json Groups() const {
    json state = json::object();
    groups_.PutInto(state);
    return state;
  }

  DcpParamGroups groups_;
};

TEST_F(DcpParamGroupsTest, AListHasItsMembersNames) {
  Add({"optim", "param_groups", "1", "lr"}, 0.5);
  Add({"optim", "param_groups", "0", "lr"}, 0.25);
  Add({"optim", "param_groups", "0", "betas"}, {0.9, 0.95});
  Add({"optim", "param_groups", "0", "params"}, {"model.a.weight", "b.weight"});
  Add({"optim", "param_groups", "1", "params"}, {"a.bias"});
  EXPECT_EQ(Groups(), json({{"param_groups",
                             {{{"lr", 0.25}, {"betas", {0.9, 0.95}}, {"params", {"a.weight", "b.weight"}}},
                              {{"lr", 0.5}, {"params", {"a.bias"}}}}}}));
}

TEST_F(DcpParamGroupsTest, FlattenedParametersOfEqualValuesAreAGroup) {
  for (const char* name : {"a.weight", "b.weight"}) {
    Add({"optim", std::string("param_groups.") + name + ".lr"}, 0.5);
    Add({"optim", std::string("param_groups.") + name + ".weight_decay"}, 0.1);
  }
  Add({"optim", "param_groups.model.a.bias.lr"}, 0.5);
  Add({"optim", "param_groups.model.a.bias.weight_decay"}, 0.0);
  EXPECT_EQ(Groups(), json({{"param_groups",
                             {{{"lr", 0.5}, {"weight_decay", 0.1}, {"params", {"a.weight", "b.weight"}}},
                              {{"lr", 0.5}, {"weight_decay", 0.0}, {"params", {"a.bias"}}}}}}));
}

// Members that are numbers say nothing: a training of another program may number its parameters differently.
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
    EXPECT_FALSE(DcpParamGroups::IsOne(Item(path))) << Item(path).name;
  EXPECT_EQ(Groups(), json::object());
}

}  // namespace
}  // namespace cairn
