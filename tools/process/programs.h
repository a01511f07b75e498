// Finds the programs that this one starts.
#pragma once

#include <string>

#include "ckpt/base/status.h"

namespace cairn {

// The program of that name in the same directory as this program; empty if it does not exist.
std::string ProgramBeside(const std::string& name);

// cairn-train, in the same directory as this program. Errors: NotFound if it was not built.
Result<std::string> FindTrainer();

}  // namespace cairn
