// Which tensors of a checkpoint a training of another system resumes from, and in which types.
#pragma once

#include <optional>
#include <vector>

#include "ckpt/source.h"
#include "convert/stored_target.h"

namespace cairn {

// One parameter with what an optimizer keeps of it: indices into the list of written tensors.
struct TrainingParameter {
  ParameterSpec spec;
  uint32_t weight = 0;
  std::optional<uint32_t> master;
  std::optional<uint32_t> exp_avg;
  std::optional<uint32_t> exp_avg_sq;
};

struct TrainingTensors {
  std::vector<TargetTensor> tensors;
  std::vector<TrainingParameter> parameters;  // in the source's order
  bool optimizer = false;                     // parameters have moments; those without are frozen

  Dtype weight_type() const;  // that of most bytes
};

// Weights as they are stored, with their masters and moments; with `dtype` weights of that type: rounded from
// masters, or from fp32 weights, which are then the masters. fp32 weights need no masters. Random states
// belong to their own system and stay behind. Errors: Corrupt where some parameters have moments and others
// none; NotSupported where a type cannot be cast.
Result<TrainingTensors> ChooseTrainingTensors(const TensorTable& catalog, std::optional<Dtype> dtype);

// For formats that have a place for masters in an optimizer's state only: those of parameters without moments
// stay behind.
void LeaveLoneMasters(TrainingTensors& tensors);

}  // namespace cairn
