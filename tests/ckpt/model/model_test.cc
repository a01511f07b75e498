#include "ckpt/model/model.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

using nlohmann::json;

TEST(ModelTest, IsWrittenAsItWasRead) {
  json stated = {{"architecture", "megatron"},
                 {"hugging_face", {{"config", {{"a", 1}}}}},
                 {"head_dim", nullptr},
                 {"mlp_bias", true}};
  for (const ModelField& field : ModelFields())
    if (!stated.contains(field.name)) stated[field.name] = {{"of", field.meaning}, {"spelled", 1.0}};
  const Model model = stated;
  EXPECT_EQ(json(model).dump(), stated.dump());
  EXPECT_EQ(json(Model()).dump(), "{}");
}

TEST(ModelTest, AnAbsentFamilyIsEmpty) {
  EXPECT_EQ(Model(json{{"architecture", "megatron"}}).architecture, "");
  EXPECT_EQ(Model(json{{"architecture", "llama"}}).architecture, "llama");
  EXPECT_EQ(Model(json::object()).architecture, std::nullopt);
}

TEST(ModelTest, FieldsHaveOneNameAndNamesOneField) {
  Model model;
  for (const ModelField& field : ModelFields()) {
    EXPECT_EQ(NameOf(field.value), std::string_view(field.name));
    model.Set(field.name, 7);
    EXPECT_EQ(model.*field.value, 7) << field.name;
    EXPECT_EQ(model.Get(field.name), 7);
  }
  EXPECT_TRUE(model.rest.empty());
}

}  // namespace
}  // namespace cairn
