// Which tensors of a checkpoint a training of another system resumes from, and in which types.
#pragma once

#include <optional>
#include <vector>

#include "ckpt/model/source.h"
#include "convert/foreign/stored_target.h"

namespace cairn {

// One parameter with what an optimizer keeps of it: indices into the list of written tensors.
struct TrainingParameter {
  ParameterSpec spec;
  uint32_t weight = 0;
  std::optional<uint32_t> master;
  std::optional<uint32_t> step;                   // if parameters differ in it
  std::vector<std::pair<Role, uint32_t>> states;  // others, by role

  bool has_state() const { return !states.empty(); }  // else it is frozen
  std::vector<Role> roles() const;                    // of its states
  // The weight, the master or a state that it has. A weight without a master is its own.
  uint32_t TensorOf(Role role) const;
};

struct TrainingTensors {
  std::vector<WrittenTensor> tensors;
  std::vector<TrainingParameter> parameters;  // in the source's order
  bool optimizer = false;                     // parameters have states; those without are frozen

  Dtype weight_type() const;  // that of most bytes
};

// Weights as they are stored, with their masters and moments; with `dtype` weights of that type: rounded from
// masters, or from fp32 weights, which are then the masters. fp32 weights need no masters. Opaque tensors
// belong to their own system and are left behind, and so are steps if the state says `one_optimizer_step`.
// Errors: NotSupported if a type cannot be cast.
Result<TrainingTensors> ChooseTrainingTensors(const CheckpointSource& source, std::optional<Dtype> dtype);

}  // namespace cairn
