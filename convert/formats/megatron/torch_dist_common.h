// common.pt, the part of a distributed checkpoint of Megatron-Core that all ranks share: arguments, progress,
// the optimizer's hyper-parameters, the schedule, and how a loader asks for the content.
#pragma once

#include "convert/formats/megatron/megatron_core.h"

namespace cairn {

// The optimizer of Megatron that the state is for.
enum class CoreOptimizer { kNone, kFp32, kFloat16, kDistributed };

struct TorchDistCommon {
  const Manifest& manifest;
  const MegatronShape& shape;
  const Topology& topology;
  const std::vector<int>& layers;  // of each pipeline chunk
  const TrainingState& state;
  Dtype weights = Dtype::kF32;
  CoreOptimizer optimizer = CoreOptimizer::kNone;
  bool local_spec = false;  // layers of Megatron-Core's own, and torch's optimizer
};

// Emits the file's dict into the zip.
void EmitTorchDistCommon(const TorchDistCommon& common, uint32_t zip, TargetBuilder& builder);

}  // namespace cairn
