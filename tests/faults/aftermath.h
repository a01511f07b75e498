// The moment after a crash: load, clean up, perhaps crash again while cleaning up, load again.
#pragma once

#include "tests/faults/scenario.h"

namespace cairn {

// Kills the process at operation `at`; then, by chance, the process that cleans up, or its power.
std::string TryKill(const Recording& recording, size_t at, SimDisk::Random& random);

// Takes the power away at operation `at`, and by chance again during the cleaning up.
std::string TryPowerLoss(const Recording& recording, size_t at, SimDisk::Random& random);

// Records every scenario; the first one that fails undisturbed is an error.
Result<std::vector<Recording>> RecordAll(std::vector<Scenario> scenarios);

}  // namespace cairn
