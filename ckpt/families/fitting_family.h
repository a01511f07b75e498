// Finds the family of a model that does not name one, by its modules and its function.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "ckpt/model/shape.h"

namespace cairn {

// The name of the first family that has the modules of the model and computes its function; if none computes
// it, the first that has its modules: its writer then reports the difference. kNoFamily if none has. `model`
// is a manifest's, and the family that it names is tried first. `possible`: the model's modules; several if
// the source leaves it open.
std::string FittingFamily(nlohmann::json model, std::span<const DecoderModules> possible);

}  // namespace cairn
