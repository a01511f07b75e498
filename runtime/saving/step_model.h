// What a training would start from says of its model: read before there is a model to load it into.
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

// Of the newest step of `save_dir` that opens; where it has none, of the step `load`, or the newest of the
// run directory `load`. Nothing where there is none: resuming says why (resume.h). Either may be empty.
std::optional<StepModel> FindStepModel(const std::string& save_dir, const std::string& load);

}  // namespace cairn
