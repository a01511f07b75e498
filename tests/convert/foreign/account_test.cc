#include "convert/foreign/account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

using testing::HasSubstr;

// A file of three storages of 40 bytes: two matrices of [2, 5] fp32, and random states.
struct SampleTensors {
  StoredCatalog catalog;
  Account account;

  SampleTensors() {
    catalog.files = {"file"};
    for (uint32_t i = 0; i < 3; ++i) account.AddStorage("file", std::string(1, "abr"[i]), 100 + 40 * i, 40);
    for (const char* name : {"a", "b"}) Add(name, {2, 5}, 100 + 40 * catalog.tensors.size());
    account.Omit(Fate::kTrainingState, "file", 180, 40, "rng");
  }
  void Add(const std::string& name, const Dims& shape, uint64_t offset) {
    const auto index = static_cast<uint32_t>(catalog.tensors.size());
    catalog.tensors.push_back({{.name = name, .shape = shape}, Role::kWeight, Dtype::kF32});
    catalog.arrays.push_back({name, Dtype::kF32, shape, {{{0, shape.Volume()}, 0, offset}}});
    catalog.parts.push_back({{Box::Whole(shape), Box::Whole(shape)}, index, index});
  }
  std::string Error() const { return account.Close(catalog).status().message(); }
};

TEST(Account, PartsSumToTheBytesOfTheStorages) {
  const SampleTensors sample;
  const auto account = sample.account.Close(sample.catalog);
  ASSERT_TRUE(account.ok()) << account.status().message();
  EXPECT_EQ((*account)["bytes"], 120);
  EXPECT_EQ((*account)["storages"], 3);
  EXPECT_EQ((*account)["parts"], nlohmann::json({{"weight", {{"count", 2}, {"bytes", 80}}},
                                                 {"training_state", {{"count", 1}, {"bytes", 40}}}}));
  EXPECT_EQ((*account)["in_no_tensor"], nlohmann::json({"rng"}));
}

TEST(Account, AnUnclaimedByteIsAnError) {
  SampleTensors sample;
  sample.account.AddStorage("file", "forgotten", 300, 8);
  EXPECT_THAT(sample.Error(), HasSubstr("file: bytes 300 to 308 (forgotten at byte 300)"));
  sample.account.Omit(Fate::kBuffer, "file", 300, 7, "most of it");
  EXPECT_THAT(sample.Error(), HasSubstr("bytes 307 to 308 (forgotten"));
  sample.account.Omit(Fate::kAlignment, "file", 306, 2, "the rest");
  EXPECT_EQ(sample.Error(), "");
}

// A file may have only empty tensors: no byte of it is a storage's.
TEST(Account, AnEmptyTensorNeedsNoStorage) {
  SampleTensors sample;
  sample.catalog.files.emplace_back("empty");
  sample.Add("c", {0, 5}, 100);
  sample.catalog.arrays.back().extents[0].file = 1;
  sample.account.Omit(Fate::kBuffer, "buffers", 8, 0, "d");
  EXPECT_EQ(sample.Error(), "");
}

// A reader that skips a tensor, in every possible way.
TEST(Account, ADroppedTensorIsAnError) {
  SampleTensors no_part;
  no_part.catalog.parts.pop_back();
  EXPECT_THAT(no_part.Error(), HasSubstr("(b at byte 140)"));
  SampleTensors no_array;
  no_array.catalog.parts.pop_back();
  no_array.catalog.arrays.pop_back();
  EXPECT_THAT(no_array.Error(), HasSubstr("(b at byte 140)"));
  SampleTensors half;
  half.catalog.parts[1].in_array.extent[0] = 1;
  EXPECT_THAT(half.Error(), HasSubstr("5 elements of b are in no tensor"));
  SampleTensors twice;
  twice.catalog.parts.push_back(twice.catalog.parts[1]);
  EXPECT_THAT(twice.Error(), HasSubstr("elements of b would be read twice"));
  SampleTensors unlisted;
  unlisted.catalog.files = {"another"};
  EXPECT_THAT(unlisted.Error(), HasSubstr("storages are not listed"));
}

TEST(Account, ListsVocabularyPaddingAndReplicasSeparately) {
  SampleTensors sample;
  sample.catalog.parts[0].in_array.extent[0] = 1;
  sample.catalog.tensors[0].spec.cuts = {{.pad = 2}};
  sample.catalog.parts.pop_back();
  sample.account.Replica(1);
  const auto account = sample.account.Close(sample.catalog);
  ASSERT_TRUE(account.ok()) << account.status().message();
  EXPECT_EQ((*account)["parts"]["weight"]["bytes"], 20);
  EXPECT_EQ((*account)["parts"]["padding"]["bytes"], 20);
  EXPECT_EQ((*account)["parts"]["replica"]["bytes"], 40);
  EXPECT_EQ((*account)["bytes"], 120);
}

TEST(Account, KnowsTheNamesOfOptimizers) {
  for (const char* name : {"optimizer.state.0.exp_avg", "chained_0.optimizer.param_state.0", "optim.m",
                           "critic_optim.v", "optimizer_states.0", "policy_optimizer"})
    EXPECT_TRUE(IsOptimizerName(name)) << name;
  for (const char* name :
       {"opt_param_scheduler.lr", "model.optimal.weight", "layers.0.optim_rng", "common.pt.args"})
    EXPECT_FALSE(IsOptimizerName(name)) << name;
}

}  // namespace
}  // namespace cairn
