// States as torch.optim's state_dict() has them: a dict by name, of tensors and `step`.
#include "convert/formats/training/param_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/torch/pickle_emitter.h"
#include "convert/torch/pickle_machine.h"

namespace cairn {
namespace {

using testing::HasSubstr;

class OptimizerStateNamesTest : public testing::Test {
 protected:
  void Tensor(std::string_view name, const Dims& shape) {
    pickle_.Text(name);
    pickle_.Tensor(Dtype::kF32, std::to_string(keys_++), shape);
  }
  Result<OptimizerStates> States() {
    pickle_.EndDict();
    pickled_ = Unpickle(std::make_shared<const std::string>(pickle_.Finish())).value();
    return StatesOf(*pickled_->root, "layers.0.weight");
  }
  void SetUp() override { pickle_.BeginDict(); }

  PickleEmitter pickle_;
  std::unique_ptr<Pickle> pickled_;
  int keys_ = 0;
};

TEST_F(OptimizerStateNamesTest, AdamHasTwoMomentsAndAStep) {
  Tensor("exp_avg_sq", {2, 3});
  Tensor("exp_avg", {2, 3});
  pickle_.Entry("step", 12);
  const auto states = States();
  ASSERT_TRUE(states.ok()) << states.status().message();
  ASSERT_EQ(states->tensors.size(), 2u);
  EXPECT_EQ(states->tensors[0].first, Role::kExpAvg);
  EXPECT_EQ(states->tensors[1].first, Role::kExpAvgSq);
  EXPECT_EQ(states->tensors[1].second->shape, (Dims{2, 3}));
  ASSERT_NE(states->step, nullptr);
  EXPECT_EQ(AsInt(states->step), 12);
}

TEST_F(OptimizerStateNamesTest, EmptyStatesAreIgnored) {
  pickle_.Entry("momentum_buffer", nullptr);  // SGD without momentum
  const auto states = States();
  ASSERT_TRUE(states.ok()) << states.status().message();
  EXPECT_TRUE(states->tensors.empty());
  EXPECT_EQ(states->step, nullptr);
}

TEST_F(OptimizerStateNamesTest, AScalarStateIsNotOfTheParametersShape) {
  Tensor("mu_product", {});
  Tensor("exp_avg", {4});
  const auto states = States();
  ASSERT_TRUE(states.ok()) << states.status().message();
  EXPECT_FALSE(IsNumber(*states->tensors[0].second));
  EXPECT_EQ(states->tensors[1].first, Role::kMuProduct);
  EXPECT_TRUE(IsNumber(*states->tensors[1].second));
}

TEST_F(OptimizerStateNamesTest, AnUnknownStateKeepsItsName) {
  Tensor("z", {4});
  pickle_.Text("blocks");
  pickle_.BeginDict();
  Tensor("absmax1", {1});
  pickle_.EndDict();
  const auto states = States();
  ASSERT_TRUE(states.ok()) << states.status().message();
  EXPECT_EQ(Name(states->tensors[0].first), "blocks.absmax1");
  EXPECT_EQ(Name(states->tensors[1].first), "z");
}

TEST_F(OptimizerStateNamesTest, AKeyThatCannotBeARoleIsRefusedByName) {
  Tensor("exp_avg^3", {4});
  EXPECT_THAT(States().status().message(), HasSubstr("exp_avg^3 of layers.0.weight"));
}

// Masters are not a state of torch's optimizers, and weights of no optimizer.
TEST_F(OptimizerStateNamesTest, RolesThatAreNotStatesAreRefused) {
  Tensor("master", {4});
  EXPECT_THAT(States().status().message(), HasSubstr("master of layers.0.weight"));
}

TEST_F(OptimizerStateNamesTest, AStateThatIsNotATensorIsRefused) {
  pickle_.Entry("exp_avg", 0.5);
  EXPECT_THAT(States().status().message(), HasSubstr("exp_avg of layers.0.weight is not a tensor"));
}

}  // namespace
}  // namespace cairn
