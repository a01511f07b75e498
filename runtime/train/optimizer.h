// AdamW on this rank's share of the flat buffer: all of it, or under ZeRO-1 one partition.
//
// Moments are fp32. With 16-bit weights an fp32 master copy is updated and rounded to them. Vectors (biases,
// norms) are not decayed. at::_fused_adamw_ reads and writes each array once; it also divides the gradient by
// the loss scale and the clipping factor on its way.
#pragma once

#include "runtime/comm/parallel_dims.h"
#include "runtime/config/train_config.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/saving/checkpoint_hooks.h"

namespace cairn {

class Optimizer {
 public:
  // `parameters` must outlive the optimizer.
  Optimizer(const TrainConfig& config, const FlatParameters& parameters, const ParallelDims& dims);

  // Takes the initial fp32 values of a parameter where there is a master copy.
  void SetMaster(const LocalParameter& local, const at::Tensor& values);

  // Sums over this rank's share of the global gradient: each element of the model counts on exactly one rank
  // of the world. Infinite or NaN where a gradient is.
  double SquareSum() const;
  double CountZeros() const;

  // One update with gradients divided by `grad_divisor`; `step` counts updates from 1.
  void Step(double lr, double grad_divisor, int64_t step);

  // Weights, masters and moments as the checkpoint sees them.
  std::vector<StateBuffers::Part> Parts() const;

 private:
  // Views of one stretch of the share after another, in the order that at::_fused_adamw_ wants them.
  struct Group {
    double weight_decay = 0;
    std::vector<at::Tensor> masters, grads, exp_avgs, exp_avg_sqs, steps;
  };
  Group MakeGroup(const std::vector<FlatRange>& stretches, double weight_decay) const;

  const FlatParameters& parameters_;
  double beta1_;
  double beta2_;
  double eps_;
  FlatRange share_;     // of the flat buffer
  at::Tensor master_;   // fp32, the share; for fp32 weights a view of them
  at::Tensor exp_avg_;  // fp32, the share
  at::Tensor exp_avg_sq_;
  at::Tensor step_;  // fp32 scalar, as the kernel wants it
  std::vector<Group> groups_;
  std::vector<at::Tensor> counted_grads_;  // those that this rank adds to the global norm
};

}  // namespace cairn
