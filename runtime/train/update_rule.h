// How an optimizer computes new weights from gradients: Adam or SGD, as in torch.optim and Megatron-LM.
#pragma once

#include <ATen/Tensor.h>

#include <memory>
#include <vector>

#include "ckpt/model/tensor.h"
#include "runtime/config/train_config.h"

namespace cairn {

// Stretches of parameters that are decayed alike. All tensors are fp32 and of one dimension; a list has one
// of each stretch.
struct Stretches {
  double weight_decay = 0;
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> grads;                // sums: to be divided by UpdateStep::grad_divisor
  std::vector<std::vector<at::Tensor>> states;  // by UpdateRule::roles()
};

struct UpdateStep {
  double lr = 0;
  double grad_divisor = 1;
  int64_t number = 1;  // of updates, counted from 1
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // The tensors that it keeps for each parameter, in the parameter's shape.
  virtual std::vector<Role> roles() const = 0;
  // Gradients may be overwritten.
  virtual void Update(const Stretches& stretches, const UpdateStep& step) const = 0;
};

// --optimizer and its flags.
std::unique_ptr<UpdateRule> MakeUpdateRule(const TrainConfig& config);

}  // namespace cairn
