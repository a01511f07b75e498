// Finds the trainer, which is a program of its own.
#pragma once

#include <string>

#include "ckpt/base/status.h"

namespace cairn {

// cairn-train, which lies beside this program. Errors: NotFound if it was not built.
Result<std::string> FindTrainer();

}  // namespace cairn
