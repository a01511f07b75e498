// DeepSpeed's ZeRO shards: the optimizer's state of one model parallel rank, flattened and cut over its data
// parallel ranks. The inverse of zero_shards.h, which names the sources of the layout.
#pragma once

#include "convert/foreign/target_builder.h"
#include "convert/formats/megatron_model/local_model.h"
#include "convert/formats/training/state_places.h"
#include "convert/formats/training/training_state.h"

namespace cairn {

struct ZeroJob {
  const TrainingTensors& tensors;
  const TrainingState& state;
  Topology topology;          // zero: 1, 2 or 3
  std::string directory;      // of the step, relative
  bool source_order = false;  // of a group's parameters; else the order in which the program registers them
  bool round_robin =
      false;  // DeepSpeed's round_robin_gradients, which puts them in another order (ZeRO 1, 2)
};

// The optimizer's groups of `job.state`: indices into `held`, in order. Parameters of one tensor must be of
// one group.
std::vector<std::vector<size_t>> GroupsOf(const ZeroJob& job, const std::vector<LocalTensor>& held);

// The order into which DeepSpeed's round_robin_gradients puts a given one.
std::vector<size_t> RoundRobin(const std::vector<size_t>& order, size_t ranks);

// Emits the value of param_shapes: a list with a dict {name: shape} per group.
void EmitParamShapes(PickleEmitter& pickle, const std::vector<std::vector<size_t>>& groups,
                     const std::vector<LocalTensor>& held);
// Emits loss_scaler, dynamic_loss_scale and overflow: entries of a dict that is open.
void EmitLossScale(PickleEmitter& pickle, const TrainingState& state);
void EmitZeroStage(PickleEmitter& pickle, int stage);

// Adds the shards of model parallel rank `rank`.
void AddZeroShards(const ZeroJob& job, const std::vector<LocalTensor>& held, int rank,
                   TargetBuilder& builder);

inline constexpr const char* kDeepSpeedVersion = "0.19.8";  // whose files these are like

}  // namespace cairn
