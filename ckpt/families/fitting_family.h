// Finds the family of a model that does not name one, by its modules and its function.
#pragma once

#include <span>
#include <string>

#include "ckpt/model/model.h"

namespace cairn {

// The name of the first family that has the modules of the model and computes its function; if none computes
// it, the first that has its modules: its writer then reports the difference. Empty if none has. The family
// that `model` names is tried first. `possible`: the model's modules; several if the source leaves it open.
std::string FittingFamily(Model model, std::span<const DecoderModules> possible);

}  // namespace cairn
