// Finds the family of a model that does not name one, by its modules and its function.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "ckpt/model/shape.h"
#include "convert/families/family.h"

namespace cairn {

struct FittingFamily {
  const Architecture* family = nullptr;
  bool computes = false;
};

// The first family that has the modules of the model and computes its function; if none computes it, the
// first that has its modules; null if none has. `model` is a manifest's, and the family that it names is
// tried first. `possible`: the model's modules; several if the source leaves it open.
FittingFamily FindFittingFamily(const nlohmann::json& model, std::span<const DecoderModules> possible);

}  // namespace cairn
