#include "convert/formats/hugging_face/config_mapping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ckpt/families/expand.h"
#include "ckpt/families/hugging_face_config.h"
#include "tests/support/random_config.h"

namespace cairn {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class MapByConfigTest : public testing::TestWithParam<Architecture> {};

TEST_P(MapByConfigTest, MapsListedTensorsToParameters) {
  std::mt19937_64 rng(1);
  json model = *ModelOfConfig(GetParam(), RandomConfig(GetParam(), rng));
  model["hugging_face"]["config"] = json::object();
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
  listed.pop_back();
  listed.back().spec.name = "module." + last.spec.name;
  EXPECT_THAT(map().status().message(), HasSubstr("no place")) << "only a training's names have a prefix";
  listed.back() = last;
  listed.push_back(last);
  EXPECT_THAT(map().status().message(), HasSubstr("occur twice"));
}

INSTANTIATE_TEST_SUITE_P(All, MapByConfigTest, testing::ValuesIn(AllAndOneMore()),
                         [](const auto& family) { return family.param.name; });

}  // namespace
}  // namespace cairn
