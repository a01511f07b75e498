#include "convert/formats/hugging_face/names_mapping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// Experts that are stacked and joined, a matrix that is cut in three, three that are joined, a renamed
// module.
const json kGroup = {
    {"types", {{"x", "XForCausalLM"}}},
    {"first", "embed.weight"},
    {"tied", {{"head.weight", "embed.weight"}}},
    {"same", {"layers.{}.experts.scale"}},
    {"touched", {"experts", "conv", "proj", "old", "new"}},
    {"rows",
     {{{"memory", "layers.{}.experts.up"},
       {"files", {"layers.{}.experts.{e}.w1.weight", "layers.{}.experts.{e}.w3.weight"}}},
      {{"memory", "layers.{}.conv.weight"},
       {"files", {"layers.{}.q_conv.weight", "layers.{}.k_conv.weight", "layers.{}.v_conv.weight"}}},
      {{"memory", {"layers.{}.q_proj.weight", "layers.{}.k_proj.weight"}},
       {"files", "layers.{}.qk_proj.weight"}},
      {{"memory", "layers.{}.new."}, {"files", "layers.{}.old."}}}}};

class MapByNamesTest : public testing::Test {
 protected:
  MapByNamesTest() { model_.rest["config"] = {{"model_type", "x"}, {"tie_word_embeddings", true}}; }

  void Add(const std::string& name, const Dims& shape, Role role = Role::kWeight,
           Dtype dtype = Dtype::kBF16) {
    table_.tensors.push_back({{.name = name, .shape = shape}, role, dtype});
  }
  Result<ConfigMapping> Map(bool in_memory = false, const std::vector<std::string>& allow = {}) const {
    return MapByNames(table_, training_, model_, &names_, in_memory, allow);
  }
  std::string Why(bool in_memory = false) const { return Map(in_memory).status().message(); }

  static std::vector<std::string> NamesIn(const ConfigMapping& mapped) {
    std::vector<std::string> names;
    for (const TensorEntry& tensor : mapped.catalog.tensors)
      names.push_back(DisplayName(tensor) + ToString(tensor.spec.shape));
    return names;
  }

  const MemoryNames names_{"x", kGroup};
  Model model_;
  Manifest training_;
  TensorTable table_;
};

TEST_F(MapByNamesTest, ATrainingGetsTheNamesOfFilesAndBack) {
  Add("embed.weight", {4, 2});
  for (const Role role : {Role::kWeight, Role::kExpAvg}) {
    Add("layers.7.experts.up", {2, 6, 3}, role);
    Add("layers.7.conv.weight", {8, 1}, role);
    Add("layers.7.k_proj.weight", {3, 3}, role);
    Add("layers.7.q_proj.weight", {3, 3}, role);
  }
  Add("layers.7.experts.scale", {2});
  Add("layers.7.new.bias", {5});
  Add("layers.7.new.bias", {1}, Role::kStep, Dtype::kF32);
  const auto files = Map();
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_THAT(
      NamesIn(*files),
      ElementsAre("embed.weight[4, 2]", "layers.7.experts.0.w1.weight[3, 3]",
                  "layers.7.experts.0.w3.weight[3, 3]", "layers.7.experts.1.w1.weight[3, 3]",
                  "layers.7.experts.1.w3.weight[3, 3]", "layers.7.q_conv.weight[3, 1]",
                  "layers.7.k_conv.weight[3, 1]", "layers.7.v_conv.weight[2, 1]",
                  "layers.7.qk_proj.weight[6, 3]", "layers.7.experts.0.w1.weight/exp_avg[3, 3]",
                  "layers.7.experts.0.w3.weight/exp_avg[3, 3]", "layers.7.experts.1.w1.weight/exp_avg[3, 3]",
                  "layers.7.experts.1.w3.weight/exp_avg[3, 3]", "layers.7.q_conv.weight/exp_avg[3, 1]",
                  "layers.7.k_conv.weight/exp_avg[3, 1]", "layers.7.v_conv.weight/exp_avg[2, 1]",
                  "layers.7.qk_proj.weight/exp_avg[6, 3]", "layers.7.experts.scale[2]",
                  "layers.7.old.bias[5]", "layers.7.old.bias/step[1]"));
  const ArrayPart& third = files->parts[3];  // rows of the second expert
  EXPECT_EQ(third.box, Box::Whole({3, 3}));
  EXPECT_EQ(third.in_array, (Box{{1, 0, 0}, {1, 3, 3}}));

  const TensorTable was = std::exchange(table_, files->catalog);
  const auto memory = Map(/*in_memory=*/true);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  std::vector<std::string> names;
  for (const TensorEntry& tensor : was.tensors)
    names.push_back(DisplayName(tensor) + ToString(tensor.spec.shape));
  EXPECT_THAT(NamesIn(*memory), testing::UnorderedElementsAreArray(names));
  EXPECT_EQ(memory->state["shared_params"], json({{"head.weight", "embed.weight"}}));
  EXPECT_EQ(NamesIn(*Map()), NamesIn(*files)) << "they have the names of files already";
}

TEST_F(MapByNamesTest, PrefixesAreTakenOffAndCopiesAreCompared) {
  Add("module.embed.weight", {4, 2});
  Add("module.head.weight", {4, 2});
  Add("module.head.weight", {4, 2}, Role::kExpAvg);
  Add("module.layers.0.new.weight", {2, 2});
  const auto mapped = Map();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  EXPECT_THAT(NamesIn(*mapped),
              ElementsAre("embed.weight[4, 2]", "embed.weight/exp_avg[4, 2]", "layers.0.old.weight[2, 2]"));
  EXPECT_THAT(mapped->twins, ElementsAre(std::pair(0u, 1u)));
  EXPECT_THAT(mapped->left.at(Fate::kReplica), ElementsAre(1u));
  Add("other.weight", {1});
  EXPECT_THAT(Why(), HasSubstr("other.weight"));
  EXPECT_TRUE(Map(false, {"other.*"}).ok());
}

TEST_F(MapByNamesTest, TensorsWithoutAPlaceAreRefusedByName) {
  Add("layers.0.new.weight", {2, 2});
  EXPECT_THAT(Why(), HasSubstr("does not have embed.weight"));
  Add("embed.weight", {4, 2});
  Add("layers.0.experts.gate", {2, 2});
  EXPECT_THAT(Why(), HasSubstr("experts.gate"));
  table_.tensors.back().spec.name = "layers.0.old.weight";
  EXPECT_THAT(Why(), HasSubstr("one of its files"));
  table_.tensors.back().spec.name = "layers.0.q_proj.weight";
  EXPECT_THAT(Why(), HasSubstr("other tensors of layers.0.q_proj.weight are missing"));
  table_.tensors.back() = {{.name = "layers.0.new.weight.lora_A.weight", .shape = {1}}, Role::kWeight};
  EXPECT_THAT(Why(), HasSubstr("adapter (LoRA)"));
  table_.tensors.back() = {{.name = "layers.0.conv.weight", .shape = {3, 2}}, Role::kWeight};
  EXPECT_TRUE(Map().ok());
  Add("layers.0.conv.weight", {3}, Role::kExpAvgSq);
  EXPECT_THAT(Why(), HasSubstr("cannot be cut as its weight is"));
}

TEST_F(MapByNamesTest, ExpertsOfHostileFilesAreRefused) {
  Add("embed.weight", {4, 2});
  const auto expert = [](const char* number, const char* name) {
    return fmt::format("layers.0.experts.{}.{}.weight", number, name);
  };
  Add(expert("0", "w1"), {3, 3});
  Add(expert("0", "w3"), {3, 3});
  EXPECT_TRUE(Map(/*in_memory=*/true).ok());
  for (const char* number : {"2", "1000000000000", "18446744073709551615", "4611686018427387904"}) {
    Add(expert(number, "w1"), {3, 3});
    Add(expert(number, "w3"), {3, 3});
    EXPECT_THAT(Why(true), HasSubstr("are missing")) << number;
    table_.tensors.resize(3);
  }
  Add(expert("1", "w1"), {3, 3});
  Add(expert("1", "w3"), {3, 4});
  EXPECT_THAT(Why(true), HasSubstr("do not fit"));
  table_.tensors.back() = {{.name = expert("1", "w3"), .shape = {3, 3}}, Role::kWeight, Dtype::kF32};
  EXPECT_THAT(Why(true), HasSubstr("do not fit"));
  table_.tensors.resize(1);
  Add("layers.0.experts.up", {2});
  EXPECT_THAT(Why(), HasSubstr("do not fit"));
  Add("layers.99999999999999999999.new.weight", {2});  // not a number that is known
  EXPECT_FALSE(Map().ok());
}

TEST(FindMemoryNames, KnowsTypesByTheirClass) {
  const auto find = [](const char* type, const char* name) {
    return FindMemoryNames({{"model_type", type}, {"architectures", {name}}});
  };
  ASSERT_TRUE(find("qwen3_next", "Qwen3NextForCausalLM").ok());
  EXPECT_THAT(find("qwen3_next", "Qwen3NextModel").status().message(), HasSubstr("this is Qwen3NextModel"));
  EXPECT_EQ(find("qwen2_vl", "Qwen2VLForConditionalGeneration").status().kind(), StatusKind::kNotSupported);
  EXPECT_EQ(*find("mine", "MineForCausalLM"), nullptr) << "it keeps its own names";
}

}  // namespace
}  // namespace cairn
