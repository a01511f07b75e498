// The names of a model's choices, as a manifest's `model` spells them.
#pragma once

#include <string>
#include <string_view>

#include "runtime/config/model_spec.h"

namespace cairn {

std::string_view NameOf(Normalization normalization);
std::string_view NameOf(Position position);
std::string_view NameOf(Activation activation);

// `where` it was said: "--activation". Errors: NotSupported naming what is known.
Result<Normalization> NormalizationNamed(std::string_view name, std::string_view where);
Result<Position> PositionNamed(std::string_view name, std::string_view where);
Result<Activation> ActivationNamed(std::string_view name, std::string_view where);

}  // namespace cairn
