// A training that builds its model from a checkpoint: flags that were not given take the checkpoint's values.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/model_spec.h"

namespace cairn {

// What a step says of its model, and what the trainer makes of it.
struct CheckpointModel {
  std::string step;      // its directory, for messages
  nlohmann::json facts;  // the manifest's `model`, whole
  std::vector<std::string>
      of_layer;  // canonical names of its parameters, of the layers only those of layer 0
  ModelSpec spec;
};

// Whether a manifest's `model` says enough to build one: its sizes. Where it does not, flags must.
bool DescribesModel(const nlohmann::json& model);

// Errors: NotSupported naming what the trainer does not compute; InvalidArgument naming a fact that is
// missing or absurd.
Result<CheckpointModel> ReadCheckpointModel(std::string step, nlohmann::json facts,
                                            std::vector<std::string> of_layer);

// The step's parameters are the model's: none is missing, none has no place, and shapes are equal.
// Errors: NotSupported or InvalidArgument naming the tensor.
Status CheckParameters(const CheckpointModel& model, const std::vector<ParameterSpec>& of_step);

// Sets the model of `config`: every flag of the model that is not among `given` has the checkpoint's value
// afterwards, and seq_length, where it was not given, is at most the model's positions.
// Errors: InvalidArgument naming a given flag that contradicts the checkpoint, and both values.
Status TakeModel(CheckpointModel model, std::span<const std::string_view> given, TrainConfig& config);

}  // namespace cairn
