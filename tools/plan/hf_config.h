// The shape of a model from Hugging Face's config.json, whatever family it is of.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ckpt/base/status.h"
#include "ckpt/model/shape.h"

namespace cairn {

// `origin` is named in messages. Errors: InvalidArgument naming a size that is missing or no whole number
// above 0.
Result<ModelShape> ShapeOfConfig(const nlohmann::json& config, const std::string& origin);

}  // namespace cairn
