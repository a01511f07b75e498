#include "runtime/train/update_rule.h"

#include <ATen/ATen.h>

#include <cmath>

namespace cairn {
namespace {

using at::Tensor;

struct AdamOptions {
  double beta1;
  double beta2;
  double eps;
};

// torch.optim.AdamW(fused=True): each array is read and written once, the gradient divided on its way.
class FusedAdam final : public UpdateRule {
 public:
  explicit FusedAdam(AdamOptions options) : options_(options) {}
  std::vector<Role> roles() const override { return {Role::kExpAvg, Role::kExpAvgSq}; }
  void Update(const Stretches& s, const UpdateStep& step) const override {
    const auto fp32 = s.weights[0].options();
    const std::vector<Tensor> numbers(s.weights.size(), at::full({}, static_cast<double>(step.number), fp32));
    at::_fused_adamw_(s.weights, s.grads, s.states[0], s.states[1], {}, numbers, step.lr, options_.beta1,
                      options_.beta2, s.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false,
                      at::full({}, step.grad_divisor, fp32));
  }

 private:
  const AdamOptions options_;
};

// torch.optim.AdamW(foreach=False), operation by operation: slower, with a copy of the denominator.
class PlainAdam final : public UpdateRule {
 public:
  explicit PlainAdam(AdamOptions options) : options_(options) {}
  std::vector<Role> roles() const override { return {Role::kExpAvg, Role::kExpAvgSq}; }
  void Update(const Stretches& s, const UpdateStep& step) const override {
    const auto n = static_cast<double>(step.number);
    const double correction1 = 1 - std::pow(options_.beta1, n);
    const double correction2 = 1 - std::pow(options_.beta2, n);
    for (size_t i = 0; i < s.weights.size(); ++i) {
      const Tensor &weight = s.weights[i], &exp_avg = s.states[0][i], &exp_avg_sq = s.states[1][i];
      const Tensor grad = s.grads[i].div_(step.grad_divisor);
      weight.mul_(1 - step.lr * s.weight_decay);
      exp_avg.lerp_(grad, 1 - options_.beta1);
      exp_avg_sq.mul_(options_.beta2).addcmul_(grad, grad, 1 - options_.beta2);
      const Tensor denominator = exp_avg_sq.sqrt().div_(std::sqrt(correction2)).add_(options_.eps);
      weight.addcdiv_(exp_avg, denominator, -step.lr / correction1);
    }
  }

 private:
  const AdamOptions options_;
};

// torch.optim.SGD: the weight decay is part of the gradient, and without momentum nothing is kept.
class Sgd final : public UpdateRule {
 public:
  explicit Sgd(double momentum) : momentum_(momentum) {}
  std::vector<Role> roles() const override {
    return momentum_ > 0 ? std::vector{Role::kMomentumBuffer} : std::vector<Role>{};
  }
  void Update(const Stretches& s, const UpdateStep& step) const override {
    for (size_t i = 0; i < s.weights.size(); ++i) {
      Tensor change = s.grads[i].div_(step.grad_divisor).add_(s.weights[i], s.weight_decay);
      if (momentum_ > 0) change = s.states[0][i].mul_(momentum_).add_(change);
      s.weights[i].add_(change, -step.lr);
    }
  }

 private:
  const double momentum_;
};

}  // namespace

std::unique_ptr<UpdateRule> MakeUpdateRule(const TrainConfig& config) {
  if (config.optimizer == "sgd") return std::make_unique<Sgd>(config.sgd_momentum);
  const AdamOptions options{config.adam_beta1, config.adam_beta2, config.adam_eps};
  if (config.no_fused_adam) return std::make_unique<PlainAdam>(options);
  return std::make_unique<FusedAdam>(options);
}

}  // namespace cairn
