#include "convert/formats/hugging_face/training_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ckpt/families/expand.h"
#include "ckpt/families/hugging_face_config.h"
#include "tests/support/random_config.h"

namespace cairn {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// A training of a model of the family: each parameter with a moment and the step of its own.
struct Training {
  explicit Training(const Family& of) : family(of) {
    std::mt19937_64 rng(1);
    manifest.model = *ModelOfConfig(family, RandomConfig(family, rng));
    manifest.model.rest["hugging_face"]["config"] = json::object();
    const auto expanded = Expand(family, manifest.model, StoredForm::kMemory);
    for (const ParameterSpec& spec : expanded->parameters) {
      tensors.push_back({spec, Role::kWeight, Dtype::kF32});
      tensors.push_back({spec, Role::kExpAvg, Dtype::kF32});
      tensors.push_back({{.name = spec.name}, Role::kStep, Dtype::kF32});
    }
  }

  Result<ConfigMapping> Map() const { return MapToMemory(table, manifest, family); }
  std::string Error() const { return Map().status().message(); }
  TensorEntry& Entry(std::string_view name, Role role) {
    return *std::ranges::find_if(
        tensors, [&](const TensorEntry& entry) { return entry.spec.name == name && entry.role == role; });
  }

  const Family& family;
  Manifest manifest;
  TensorTable table;
  std::vector<TensorEntry>& tensors = table.tensors;
};

class TrainingNamesTest : public testing::TestWithParam<Family> {};

TEST_P(TrainingNamesTest, ComeBackAsTheSameParameters) {
  const Training training(GetParam());
  const auto named = training.Map();
  ASSERT_TRUE(named.ok()) << named.status().message();
  const ConfigModel config{"config.json", &GetParam(), training.manifest.model};
  const auto back = MapByConfig(named->catalog, &training.manifest, config, {});
  ASSERT_TRUE(back.ok()) << back.status().message();
  const auto keys = [](const TensorTable& table) {
    std::set<std::string> keys;
    for (const TensorEntry& entry : table.tensors)
      keys.insert(DisplayName(entry) + ToString(entry.spec.shape));
    return keys;
  };
  EXPECT_EQ(keys(back->catalog), keys(training.table));
  uint64_t elements = 0, in_parts = 0;
  for (const TensorEntry& entry : named->catalog.tensors) elements += entry.spec.shape.Volume();
  for (const ArrayPart& part : named->parts) in_parts += part.box.extent.Volume();
  EXPECT_EQ(in_parts, elements) << "every element of a tensor is one of a parameter";
}

INSTANTIATE_TEST_SUITE_P(All, TrainingNamesTest, testing::ValuesIn(AllAndOneMore()),
                         [](const auto& family) { return family.param.name; });

TEST(TrainingNamesErrorTest, ParametersOfOneTensorMustBeAlike) {
  constexpr const char *kGate = "layers.0.mlp.experts.gate.weight", *kUp = "layers.0.mlp.experts.up.weight";
  const auto changed = [](const std::function<void(Training&)>& change) {
    Training training(*FindFamily("mixtral"));
    change(training);
    return training.Error();
  };
  EXPECT_THAT(changed([&](Training& t) { t.Entry(kUp, Role::kWeight).dtype = Dtype::kBF16; }),
              AllOf(HasSubstr("have two types"), HasSubstr("model.layers.0.mlp.experts.gate_up_proj")));
  EXPECT_THAT(changed([&](Training& t) { t.Entry(kUp, Role::kExpAvg).spec.name = "x"; }),
              HasSubstr("1 of the 2 parameters in model.layers.0.mlp.experts.gate_up_proj have exp_avg"));
  EXPECT_THAT(changed([&](Training& t) {
                t.Entry(kGate, Role::kExpAvg).spec.shape = {1, 1};
              }),
              AllOf(HasSubstr("shape [1, 1]"), HasSubstr("--allow optimizer")));
  EXPECT_THAT(changed([&](Training& t) {
                t.manifest.state["param_groups"] = {{{"params", {kGate}}}, {{"params", {kUp}}}};
              }),
              HasSubstr("two groups of the optimizer"));
  EXPECT_THAT(changed([&](Training& t) {
                t.tensors.push_back({{.name = "mlp.extra.weight", .shape = {1}}, Role::kWeight, Dtype::kF32});
              }),
              HasSubstr("mlp.extra.weight has no place"));
}

}  // namespace
}  // namespace cairn
