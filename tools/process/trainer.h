// The trainer's program, which is started and not linked.
#pragma once

#include <string>

#include "ckpt/base/status.h"

namespace cairn {

// cairn-train, which lies beside this program. Errors: NotFound if it was not built.
Result<std::string> FindTrainer();

}  // namespace cairn
