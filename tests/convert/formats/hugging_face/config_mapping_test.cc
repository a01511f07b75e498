#include "convert/formats/hugging_face/config_mapping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ckpt/families/expand.h"
#include "ckpt/families/hugging_face_config.h"
#include "convert/formats/hugging_face/config_model.h"
#include "tests/support/random_config.h"

namespace cairn {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class MapByConfigTest : public testing::TestWithParam<Family> {};

TEST_P(MapByConfigTest, MapsListedTensorsToParameters) {
  std::mt19937_64 rng(1);
  Model model = *ModelOfConfig(GetParam(), RandomConfig(GetParam(), rng));
  model.rest["hugging_face"]["config"] = json::object();
  const auto expanded = Expand(GetParam(), model);
  TensorTable table;
  for (const ForeignTensor& tensor : expanded->tensors) {
    std::string name = tensor.name;
    if (name.starts_with(GetParam().base_prefix)) name = name.substr(GetParam().base_prefix.size());
    table.tensors.push_back({{.name = name, .shape = tensor.shape}, Role::kWeight, Dtype::kF16});
  }
  std::vector<TensorEntry>& listed = table.tensors;
  std::ranges::shuffle(listed, rng);
  const ConfigModel config{"config.json", &GetParam(), model};
  const auto map = [&](const std::vector<std::string>& allow = {}) {
    return MapByConfig(table, /*training=*/nullptr, config, allow);
  };
  const auto mapped = map();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  EXPECT_EQ(mapped->catalog.Parameters(), expanded->parameters);
  EXPECT_EQ(map({"*"})->catalog, mapped->catalog) << "a tensor that has a place is not left out";

  const TensorEntry last = listed.back();
  listed.pop_back();
  const auto missing = map();
  EXPECT_EQ(missing.status().kind(), StatusKind::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr(last.spec.name));
  listed.push_back(last);
  listed.push_back({{.name = "adapter.weight", .shape = {1}}, Role::kWeight, Dtype::kF16});
  EXPECT_THAT(map().status().message(), HasSubstr("adapter.weight"));
  EXPECT_THAT(map({"adapter.*"})->left.at(Fate::kAllowed), ElementsAre(listed.size() - 1));
  // peft puts what it adapts one level deeper, beside its own tensors.
  const size_t kind = last.spec.name.rfind('.');
  if (kind != std::string::npos) {
    TensorEntry& adapted = listed[listed.size() - 2];
    adapted.spec.name.insert(kind, ".base_layer");
    listed.back().spec.name = last.spec.name.substr(0, kind) + ".lora_A.default.weight";
    EXPECT_THAT(map().status().message(), HasSubstr("1 tensors are of an adapter (LoRA)"));
    EXPECT_EQ(map({"*lora_*"})->catalog.Parameters(), expanded->parameters);
    adapted = last;
  }
  listed.pop_back();
  listed.back().spec.name = "module." + last.spec.name;
  EXPECT_THAT(map().status().message(), HasSubstr("no place")) << "only a training's names have a prefix";
  listed.back() = last;
  listed.push_back(last);
  EXPECT_THAT(map().status().message(), HasSubstr("occur twice"));
}

INSTANTIATE_TEST_SUITE_P(All, MapByConfigTest, testing::ValuesIn(AllAndOneMore()),
                         [](const auto& family) { return family.param.name; });

TEST(MtpTest, CopiesInItsLayersAreTwinsAndMissingLayersAreTakenOut) {
  const Family& family = *FindFamily("deepseek_v3");
  std::mt19937_64 rng(1);
  json config = RandomConfig(family, rng);
  config["num_nextn_predict_layers"] = 1;
  config["tie_word_embeddings"] = false;
  ConfigModel model{"config.json", &family, *ModelOfConfig(family, config)};
  model.model.rest["hugging_face"]["config"] = json::object();
  TensorTable table;
  const auto expanded = Expand(family, model.model);
  for (const ForeignTensor& tensor : expanded->tensors)
    table.tensors.push_back({{.name = tensor.name, .shape = tensor.shape}, Role::kWeight, Dtype::kF16});
  const std::string layer = "model.layers." + model.model.num_layers.dump() + ".";
  const auto of_layer = [&](const TensorEntry& tensor) { return tensor.spec.name.starts_with(layer); };
  EXPECT_TRUE(std::ranges::any_of(table.tensors, of_layer));
  for (const auto& [copy, original] : {std::pair("embed_tokens.weight", "model.embed_tokens.weight"),
                                       std::pair("shared_head.head.weight", "lm_head.weight")}) {
    TensorEntry tensor = *std::ranges::find_if(
        table.tensors, [&](const TensorEntry& entry) { return entry.spec.name == original; });
    tensor.spec.name = layer + copy;
    table.tensors.push_back(tensor);
  }
  EXPECT_TRUE(ChooseMtpLayers(table, {}, model).empty());
  const auto mapped = MapByConfig(table, nullptr, model, {});
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  ASSERT_EQ(mapped->twins.size(), 2u);
  for (const auto& [original, copy] : mapped->twins)
    EXPECT_NE(table.tensors[original].spec.name, table.tensors[copy].spec.name);
  EXPECT_THAT(mapped->left.at(Fate::kReplica), testing::SizeIs(2));

  ConfigModel without = model;
  EXPECT_THAT(ChooseMtpLayers(table, {layer + "*"}, without), testing::SizeIs(1));
  EXPECT_TRUE(MapByConfig(table, nullptr, without, {layer + "*"}).ok());
  std::erase_if(table.tensors, of_layer);
  EXPECT_FALSE(MapByConfig(table, nullptr, model, {}).ok());
  EXPECT_TRUE(MapByConfig(table, nullptr, without, {}).ok());
}

// A training of Mixtral whose modules are those of transformers 4: a tensor, its moment and its step for each
// expert.
class ExpertsTest : public testing::Test {
 protected:
  ExpertsTest()
      : family_(*FindFamily("mixtral")),
        model_(*ModelOfConfig(family_, {{"num_hidden_layers", 1},
                                        {"hidden_size", 4},
                                        {"num_attention_heads", 2},
                                        {"num_key_value_heads", 1},
                                        {"num_local_experts", 3},
                                        {"intermediate_size", 5},
                                        {"vocab_size", 7}})) {
    model_["hugging_face"]["config"] = json::object();
    const auto expanded = Expand(family_, model_);
    for (const ForeignTensor& tensor : expanded->tensors)
      for (const Role role : {Role::kWeight, Role::kExpAvg})
        table_.tensors.push_back({{.name = tensor.name, .shape = tensor.shape}, role, Dtype::kF32});
  }

  Result<ConfigMapping> Map() const {
    const ConfigModel config{"config.json", &family_, model_};
    return MapByConfig(table_, &training_, config, /*allow=*/{});
  }
  TensorEntry& Entry(std::string_view name, Role role = Role::kWeight) {
    return *std::ranges::find_if(table_.tensors, [&](const TensorEntry& tensor) {
      return tensor.spec.name == name && tensor.role == role;
    });
  }

  Family family_;
  json model_;
  TensorTable table_;
  Manifest training_;
};

constexpr const char* kExpert = "model.layers.0.block_sparse_moe.experts.1.w2.weight";

TEST_F(ExpertsTest, AreOneTensorInEachRole) {
  const auto mapped = Map();
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  size_t found = 0;
  for (const TensorEntry& tensor : mapped->catalog.tensors)
    if (tensor.spec.name == "layers.0.mlp.experts.down.weight") {
      EXPECT_EQ(tensor.spec.shape, (Dims{3, 4, 5}));
      ++found;
    }
  EXPECT_EQ(found, 2U);
}

TEST_F(ExpertsTest, AMissingOneIsNamed) {
  Entry(kExpert).spec.name = "model.layers.0.block_sparse_moe.experts.3.w2.weight";
  EXPECT_THAT(Map().status().message(), HasSubstr("experts.3.w2.weight"));
  std::erase_if(table_.tensors, [](const TensorEntry& tensor) {
    return tensor.spec.name.find("experts.3.") != std::string::npos;
  });
  EXPECT_THAT(Map().status().message(), HasSubstr(kExpert));
}

TEST_F(ExpertsTest, OneOfAnotherTypeIsNamed) {
  Entry(kExpert).dtype = Dtype::kBF16;
  EXPECT_THAT(Map().status().message(), HasSubstr(kExpert));
}

TEST_F(ExpertsTest, StepsOfTheirOwnAreRefused) {
  for (const char* expert : {"0", "1"})
    table_.tensors.push_back(
        {{.name = fmt::format("model.layers.0.block_sparse_moe.experts.{}.w2.weight", expert)},
         Role::kStep,
         Dtype::kF32});
  EXPECT_THAT(Map().status().message(), HasSubstr("is of one expert"));
}

}  // namespace
}  // namespace cairn
