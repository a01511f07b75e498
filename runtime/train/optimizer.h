// The update of this rank's share of the flat buffer: all of it, or from ZeRO-1 on one partition.
//
// States are fp32, or bf16 on request. With 16-bit weights an fp32 master copy is updated and rounded to
// them. Vectors (biases, norms) are not decayed. With --offload-optimizer masters and states are in host
// memory, and the host computes the update.
#pragma once

#include "runtime/comm/parallel_dims.h"
#include "runtime/config/train_config.h"
#include "runtime/model/parameters/flat_parameters.h"
#include "runtime/saving/checkpoint_hooks.h"
#include "runtime/train/update_rule.h"

namespace cairn {

class Optimizer {
 public:
  // `parameters` must outlive the optimizer.
  Optimizer(const TrainConfig& config, const FlatParameters& parameters, const ParallelDims& dims);

  // Takes the initial fp32 values of a parameter if there is a master copy.
  void SetMaster(const LocalParameter& local, const at::Tensor& values);

  // The weights are new: masters of the same type follow them.
  void TakeWeights();

  // Sums over this rank's share of the global gradient: each element of the model counts on exactly one rank
  // of the world. Infinite or NaN if a gradient is.
  double SquareSum() const;
  double CountZeros() const;

  // One update of the share's weights.
  void Step(const UpdateStep& step);

  // Weights, masters and states as the checkpoint sees them.
  std::vector<StateBuffers::Part> Parts() const;

 private:
  // Parts of the share that are decayed alike.
  struct Group {
    double weight_decay = 0;
    std::vector<FlatRange> ranges;
  };
  struct State {
    Role role;
    Dtype dtype;
    at::Tensor values;  // of the share
  };
  void Update(const Group& group, const UpdateStep& step);
  void UpdateInBlocks(const Group& group, const UpdateStep& step);
  Stretches StretchesOf(const Group& group, const std::vector<at::Tensor>& states, uint64_t origin) const;

  const FlatParameters& parameters_;
  const std::unique_ptr<UpdateRule> rule_;
  const bool offloads_;
  FlatRange share_;          // of the flat buffer
  at::Tensor master_;        // fp32, the share; the weights themselves if they are fp32 and on the same side
  at::Tensor staged_grads_;  // fp32, the share: if gradients and masters are on different sides
  std::vector<State> states_;
  std::vector<Group> groups_;
  std::vector<FlatRange> counted_;  // gradients that this rank adds to the global norm
};

}  // namespace cairn
