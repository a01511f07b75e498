#include "tools/serve/state_dict.h"

#include <gtest/gtest.h>

#include "tools/serve/packet.h"
#include "tools/serve/state_table.h"

namespace cairn {
namespace {

using nlohmann::json;

StateTensor Tensor(const std::string& fqn, const std::vector<uint64_t>& shape) {
  return DescribedTensor({{"fqn", fqn}, {"dtype", "fp32"}, {"shape", shape}}).value();
}

std::vector<StateTensor> Table(std::vector<StateTensor> tensors,
                               const std::vector<std::string>& others = {}) {
  PlaceTensors(tensors, others);
  return tensors;
}

Packet Json(const std::string& fqn, const std::string& text) {
  return {{{"values", {{fqn, {{"json", text}}}}}}, {}};
}
Packet Number(const std::string& fqn, float value) {
  const std::string bytes(reinterpret_cast<const char*>(&value), sizeof(value));
  return {
      {{"values",
        {{fqn, {{"tensor", {{"dtype", "fp32"}, {"shape", json::array()}, {"data", {0u, sizeof(value)}}}}}}}}},
      bytes};
}

TEST(PacketTest, RoundTripsAndRefusesTruncation) {
  const Packet packet{{{"a", {1, "b"}}}, std::string("tail\0", 5)};
  const std::string bytes = EncodePacket(packet);
  EXPECT_EQ(DecodePacket(bytes)->head, packet.head);
  EXPECT_EQ(DecodePacket(bytes)->tail, packet.tail);
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(DecodePacket(bytes.substr(0, size)).ok());
  EXPECT_FALSE(DecodePacket(bytes + "x").ok());
  EXPECT_FALSE(DecodePacket(EncodePacket({json::array(), {}})).ok());
  EXPECT_EQ(TailPart("abcd", {1u, 2u}).value(), "bc");
  for (const json& where : {json({3u, 2u}), json({1u}), json({-1, 1}), json("a"), json({UINT64_MAX, 2u})})
    EXPECT_EQ(TailPart("abcd", where).status().kind(), StatusKind::kCorrupt) << where;
}

TEST(StateTableTest, TensorsOfEqualNamesStaySeparate) {
  const auto table = Table({Tensor("model.a", {4}), Tensor("_orig_mod.model.a", {4})});
  EXPECT_EQ(table[0].entry.spec.name, "model.a");
  EXPECT_EQ(table[1].entry.spec.name, "_orig_mod.model.a");
}

TEST(StateTableTest, TablesRoundTripWithNamedRoles) {
  std::vector<StateTensor> tensors{Tensor("a", {4, 2}), Tensor("optim.state.a.soap_q", {4})};
  tensors[0].path = {"model", 3};
  const auto table = Table(tensors, {"optim.param_groups.0.lr"});
  EXPECT_EQ(Name(table[1].entry.role), "soap_q");
  const auto read = DecodeTable(EncodeTable(table)).value();
  ASSERT_EQ(read.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read[i].fqn, table[i].fqn);
    EXPECT_EQ(read[i].path, table[i].path);
    EXPECT_EQ(read[i].entry, table[i].entry);
  }
}

TEST(StateDictTest, DifferingValuesComeFromTheLowestRankAndAreReported) {
  StateDict dict;
  for (const auto& [rank, text] : {std::pair(0, "1"), {1, "1"}, {2, "7"}, {3, "8"}})
    ASSERT_TRUE(dict.Add(rank, Json("train.step", text)).ok());
  ASSERT_TRUE(dict.Close().ok());
  EXPECT_EQ(dict.differences(),
            std::vector<std::string>{"rank 2 had a different train.step; rank 0's was kept"});
  const auto read = ParseStateDict(dict.values().back().bytes).value();
  EXPECT_EQ(read.values["train.step"]["json"], "1");
}

TEST(StateDictTest, ValuesOfOneRankAreKept) {
  StateDict dict;
  ASSERT_TRUE(dict.Add(0, Json("dataloader.dp_rank_0", "[1]")).ok());
  ASSERT_TRUE(dict.Add(1, Json("dataloader.dp_rank_1", "[2]")).ok());
  ASSERT_TRUE(dict.Close().ok());
  const auto read = ParseStateDict(dict.values().back().bytes).value();
  EXPECT_EQ(read.values["dataloader.dp_rank_1"]["json"], "[2]");
}

TEST(StateDictTest, NamesRanksThatDisagreeOnATensor) {
  StateDict dict;
  ASSERT_TRUE(dict.Add(0, Table({Tensor("a", {4})})).ok());
  const Status other = dict.Add(3, Table({Tensor("a", {5})}));
  EXPECT_EQ(other.kind(), StatusKind::kInvalidArgument);
  EXPECT_NE(other.message().find("rank 3 holds a as fp32 [5]"), std::string::npos) << other.message();
}

// Each rank names the tensors of a step by the ones it has.
TEST(StateDictTest, NamesATensorThatRanksMapDifferently) {
  StateDict dict;
  const auto at = [](const std::string& group) {
    StateTensor tensor = Tensor(group + ".w", {4, 4});  // a vector of "ema" would not be a model
    tensor.path = {group, "w"};
    return tensor;
  };
  ASSERT_TRUE(dict.Add(0, Table({at("ema"), at("model")})).ok());
  const Status other = dict.Add(2, Table({at("model")}));
  EXPECT_EQ(other.kind(), StatusKind::kInvalidArgument);
  EXPECT_NE(other.message().find("model.w would be w"), std::string::npos) << other.message();
}

// They could be written, but never read.
TEST(StateDictTest, RefusesValuesTooLargeToLoad) {
  StateDict dict;
  Packet pickle{{{"values", {{"replay", {{"pickle", {0u, kMaxValueBytes + 1}}}}}}}, {}};
  pickle.tail.resize(kMaxValueBytes + 1);
  ASSERT_TRUE(dict.Add(0, pickle).ok());
  const Status closed = dict.Close();
  EXPECT_EQ(closed.kind(), StatusKind::kInvalidArgument);
  EXPECT_NE(closed.message().find("replay"), std::string::npos) << closed.message();
}

TEST(StateDictTest, TheManifestHasGroupsStepsAndNumbers) {
  StateDict dict;
  ASSERT_TRUE(dict.Add(0, Table({Tensor("a", {4})})).ok());
  ASSERT_TRUE(dict.Add(0, Number("optim.state.a.step", 12)).ok());
  Packet groups = Json("optim.param_groups.0.lr", "0.5");
  groups.head["values"]["optim.param_groups.0.lr"]["path"] = {"optim", "param_groups", 0, "lr"};
  groups.head["values"]["optim.param_groups.0.betas"] = {
      {"json", R"({"__cairn__": "tuple", "items": [0.9, 0.95]})"},
      {"path", {"optim", "param_groups", 0, "betas"}}};
  ASSERT_TRUE(dict.Add(0, groups).ok());
  ASSERT_TRUE(dict.Add(0, Json("train.tokens", "1000")).ok());
  ASSERT_TRUE(dict.Close().ok());
  EXPECT_EQ(dict.ManifestState(), json({{"optimizer_step", 12},
                                        {"one_optimizer_step", true},
                                        {"other", {{"train.tokens", 1000}}},
                                        {"param_groups", {{{"lr", 0.5}, {"betas", {0.9, 0.95}}}}}}));
}

TEST(StateDictTest, StepsMayBePythonNumbers) {
  for (const auto& [other, steps] : {std::pair("12", json(12)), {"12.0", json(12)}, {"13", json()}}) {
    StateDict dict;
    ASSERT_TRUE(dict.Add(0, Table({Tensor("a", {4})})).ok());
    ASSERT_TRUE(dict.Add(0, Json("optim.state.a.step", "12")).ok());
    ASSERT_TRUE(dict.Add(0, Json("optim.state.b.step", other)).ok());
    ASSERT_TRUE(dict.Close().ok());
    EXPECT_EQ(dict.ManifestState().value("optimizer_step", json()), steps) << other;
  }
}

TEST(StateTableTest, RefusesNamesThatAStepCannotHold) {
  for (const std::string& name : {std::string(), std::string("a\0b", 3)}) {
    const auto tensor = DescribedTensor({{"fqn", name}, {"dtype", "fp32"}, {"shape", json::array()}});
    EXPECT_EQ(tensor.status().kind(), StatusKind::kCorrupt);
  }
}

TEST(StateDictTest, RefusesMalformedGroups) {
  StateDict dict;
  EXPECT_EQ(dict.Add(0, Packet{}).kind(), StatusKind::kCorrupt);
  EXPECT_EQ(dict.Add(0, Packet{{{"values", {{"a", {{"json", 5}}}}}}, {}}).kind(), StatusKind::kCorrupt);
  EXPECT_EQ(dict.Add(0, Packet{{{"values", {{"a", {{"pickle", {0, 9}}}}}}}, "short"}).kind(),
            StatusKind::kCorrupt);
  ASSERT_TRUE(
      dict.Add(0, Packet{{{"values",
                           {{"a", {{"tensor", {{"dtype", "fp32"}, {"shape", {4}}, {"data", {0u, 4u}}}}}}}}},
                         "1234"})
          .ok());
  EXPECT_EQ(dict.Close().kind(), StatusKind::kCorrupt);
}

}  // namespace
}  // namespace cairn
