// Which layers of a stage are recomputed in backward, which of them together, and how their inputs are kept:
// Megatron-LM's --recompute-granularity, -method and -num-layers, DeepSpeed's activation checkpointing.
#pragma once

#include <vector>

#include "runtime/config/train_config.h"
#include "runtime/model/autograd/kept_activation.h"

namespace cairn {

// Layers [begin, end) of a stage.
struct LayerGroup {
  int begin = 0;
  int end = 0;
  bool recomputed = false;
};

class RecomputePlan {
 public:
  // `tp`: the ranks that activations may be cut across.
  RecomputePlan(const TrainConfig& config, const ProcessGroup& tp);

  // The plan of a stage with this many layers, in order. uniform: groups of recompute-num-layers; block: each
  // of the first recompute-num-layers by itself, the others not at all. With split-transformers uniform
  // counts halves of layers: Megatron-DeepSpeed then has 2 * layers / recompute-num-layers checkpoints.
  std::vector<LayerGroup> Groups(int layers) const;

  bool split_layers() const { return split_layers_; }  // attention and MLP, each by itself
  const Keeping& keeping() const { return keeping_; }

 private:
  bool layers_ = false;
  bool split_layers_ = false;
  bool block_ = false;
  int num_layers_ = 1;
  Keeping keeping_;
};

}  // namespace cairn
