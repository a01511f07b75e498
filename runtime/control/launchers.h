// What launchers tell the processes that they start.
#pragma once

#include <string>

namespace cairn {

// Whether RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are all set.
bool HasTorchrunVariables();

// For a process that met no other: the variable of a launcher that says that more than one process was
// started, and what to do. Empty: no launcher says so.
std::string WhyNotAlone();

}  // namespace cairn
