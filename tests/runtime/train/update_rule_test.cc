// Ten updates against torch.optim's own, on the same gradients.
#include "runtime/train/update_rule.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "runtime/train/optimizer.h"

namespace cairn {
namespace {

using at::Tensor;

TrainConfig Hyperparameters() {
  TrainConfig config;
  config.lr = 3e-2;
  config.adam_beta2 = 0.95;
  config.weight_decay = 0.1;
  return config;
}

// Returns the largest difference after ten updates.
double DifferenceTo(torch::optim::Optimizer& torch_optimizer, const Tensor& parameter,
                    const TrainConfig& config) {
  const auto rule = MakeUpdateRule(config);
  Stretches stretches{.weight_decay = config.weight_decay,
                      .weights = {parameter.detach().clone()},
                      .grads = {},
                      .states = {}};
  for (size_t i = 0; i < rule->roles().size(); ++i) stretches.states.push_back({at::zeros_like(parameter)});
  for (int64_t step = 1; step <= 10; ++step) {
    const Tensor grad = at::randn(parameter.sizes());
    parameter.mutable_grad() = grad.clone();
    torch_optimizer.step();
    stretches.grads = {grad * 7};  // sums of 7
    rule->Update(stretches, {.lr = config.lr, .grad_divisor = 7, .number = step});
  }
  return (stretches.weights[0] - parameter.detach()).abs().max().item<double>();
}

TEST(UpdateRuleTest, BothAdamsEqualTorchs) {
  for (const bool plain : {false, true}) {
    TrainConfig config = Hyperparameters();
    config.no_fused_adam = plain;
    at::manual_seed(1);
    const Tensor parameter = at::randn({1000}).requires_grad_();
    torch::optim::AdamW adam({parameter}, torch::optim::AdamWOptions(config.lr)
                                              .betas({config.adam_beta1, config.adam_beta2})
                                              .eps(config.adam_eps)
                                              .weight_decay(config.weight_decay));
    EXPECT_LT(DifferenceTo(adam, parameter, config), 2e-6) << plain;
  }
}

TEST(UpdateRuleTest, SgdEqualsTorchsWithAndWithoutMomentum) {
  for (const double momentum : {0.9, 0.0}) {
    TrainConfig config = Hyperparameters();
    config.optimizer = "sgd";
    config.sgd_momentum = momentum;
    EXPECT_EQ(MakeUpdateRule(config)->roles().size(), momentum > 0 ? 1 : 0);
    at::manual_seed(2);
    const Tensor parameter = at::randn({1000}).requires_grad_();
    torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(config.lr).momentum(momentum).weight_decay(
                                           config.weight_decay));
    EXPECT_LT(DifferenceTo(sgd, parameter, config), 2e-6) << momentum;
  }
}

// Moments of 16 bits halve the optimizer's memory and change an update by no more than their rounding.
TEST(OptimizerTest, MomentsOf16BitsFollowMomentsOf32Bits) {
  const std::vector<ParameterSpec> specs = {{.name = "w", .shape = {70, 30000}}};  // two blocks, and a part
  const ParallelDims dims;
  std::vector<Tensor> results;
  for (const char* dtype : {"fp32", "bf16"}) {
    TrainConfig config = Hyperparameters();
    config.exp_avg_dtype = config.exp_avg_sq_dtype = dtype;
    FlatParameters parameters(specs, *LayoutOf(specs, {}, 0), 1, Dtype::kF32, at::kCPU);
    Optimizer optimizer(config, parameters, dims);
    at::manual_seed(3);
    for (int64_t step = 1; step <= 5; ++step) {
      parameters.grads().normal_();
      optimizer.Step({.lr = config.lr, .grad_divisor = 1, .number = step});
    }
    const std::vector<StateBuffers::Part> parts = optimizer.Parts();
    EXPECT_EQ(Name(parts.at(1).dtype), dtype);
    EXPECT_EQ(Name(parts.at(2).dtype), dtype);
    results.push_back(parameters.weights().clone());
  }
  const double moved = results[0].norm().item<double>();
  const double off = (results[0] - results[1]).norm().item<double>();
  EXPECT_LT(off, 0.01 * moved);
  EXPECT_GT(off, 0);
}

}  // namespace
}  // namespace cairn
