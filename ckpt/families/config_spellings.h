// Settings of a family's config.json that follow from others, or that say in another way what a field of the
// manifest's `model` says: windows, dense layers, sizes. The functions here translate in both directions.
#pragma once

#include <nlohmann/json.hpp>

#include "ckpt/base/status.h"
#include "ckpt/families/family.h"

namespace cairn {

// Sets sizes that may be omitted and follow from others.
void DeriveSizes(const Architecture& architecture, nlohmann::json& model);

// Sets `dense_layers`, the layers that are not mixtures: families state them by a list and a step, or as the
// first ones, or list the mixtures. Errors: InvalidArgument naming the key.
Status ReadDenseLayers(nlohmann::json& model);

// Sets the layers that see the window, for families that state it by a switch and a number.
void ReadWindow(nlohmann::json& model);

// The inverse of all of these, for a model that was not read from a config.json. `function` is FunctionOf().
nlohmann::json WithSpellings(const Architecture& architecture, nlohmann::json model,
                             const nlohmann::json& function);

}  // namespace cairn
