// The model of the step that a training would start from: read before there is a model to load it into.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/model/tensor.h"

namespace cairn {

struct StepModel {
  std::string step;      // its directory
  nlohmann::json model;  // the manifest's
  std::vector<ParameterSpec> parameters;
};

// The model of the newest step of `save_dir` that opens, or else of the step or run directory `load`. nullopt
// if there is none: resuming reports why (resume.h). Either may be empty.
std::optional<StepModel> FindStepModel(const std::string& save_dir, const std::string& load);

}  // namespace cairn
