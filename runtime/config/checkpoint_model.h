// A training that builds its model from a checkpoint: flags that were not given take the checkpoint's values.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/config/model_spec.h"

namespace cairn {

// The model of a step as its manifest states it, and as the trainer builds it.
struct CheckpointModel {
  std::string step;  // its directory, for messages
  Model facts;       // the manifest's `model`, whole
  std::vector<std::string>
      of_layer;  // canonical names of its parameters, of the layers only those of layer 0
  ModelSpec spec;
};

// Errors: NotSupported naming a setting that the trainer does not support; InvalidArgument naming a fact that
// is missing or absurd.
Result<CheckpointModel> ReadCheckpointModel(std::string step, Model facts, std::vector<std::string> of_layer);

// Checks that the step's parameters are those of the model, with equal shapes.
// Errors: NotSupported or InvalidArgument naming the tensor.
Status CheckParameters(const CheckpointModel& model, const std::vector<ParameterSpec>& of_step);

// Sets the model of `config`: every flag of the model that is not among `given` has the checkpoint's value
// afterwards, and seq_length, if it was not given, is at most the model's positions.
// Errors: InvalidArgument naming a given flag that contradicts the checkpoint, and both values.
Status TakeModel(CheckpointModel model, std::span<const std::string_view> given, TrainConfig& config);

}  // namespace cairn
