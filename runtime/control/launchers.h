// The environment variables by which launchers tell processes about each other.
#pragma once

#include <string>

namespace cairn {

// True if RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are all set.
bool HasTorchrunVariables();

// Ranks on this host, by the variables of mpirun, torchrun and srun; 1 if none is set.
int RanksOnThisHost();

// For a process that met no other: the variable of a launcher that says that more than one process was
// started, and what to do. Empty: no launcher says so.
std::string WhyNotAlone();

}  // namespace cairn
