// An error as JSON, for Python: {"error", "kind"}, and "errno", "path" and "reason" if a system call failed.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "ckpt/base/status.h"

namespace cairn {

nlohmann::json FailureJson(const Status& status);
// The status of {"kind", "error"}; OK of {}.
Status StatusOf(const nlohmann::json& failure);

}  // namespace cairn
