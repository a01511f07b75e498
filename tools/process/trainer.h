// Finds the trainer, which is a separate program.
#pragma once

#include <string>

#include "ckpt/base/status.h"

namespace cairn {

// cairn-train, in the same directory as this program. Errors: NotFound if it was not built.
Result<std::string> FindTrainer();

}  // namespace cairn
