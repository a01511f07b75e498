#include "runtime/model/autograd/recompute_plan.h"

#include <algorithm>

namespace cairn {

RecomputePlan::RecomputePlan(const TrainConfig& config, const ProcessGroup& tp)
    : layers_(config.recompute()),
      split_layers_(config.recompute() && config.split_transformers),
      block_(config.recompute_method == "block"),
      num_layers_(config.recompute_num_layers) {
  if (split_layers_ && !block_ && num_layers_ > 1) {  // validated: even, so that whole layers come together
    split_layers_ = false;
    num_layers_ /= 2;
  }
  if (config.partition_activations) keeping_.cut_across = tp;
  keeping_.in_host_memory = config.checkpoint_in_cpu;
}

std::vector<LayerGroup> RecomputePlan::Groups(int layers) const {
  std::vector<LayerGroup> groups;
  const int recomputed = !layers_ ? 0 : block_ ? std::min(num_layers_, layers) : layers;
  const int together = block_ ? 1 : num_layers_;
  for (int begin = 0; begin < recomputed; begin += together)
    groups.push_back({begin, std::min(begin + together, recomputed), true});
  if (recomputed < layers) groups.push_back({recomputed, layers, false});
  return groups;
}

}  // namespace cairn
