// The moment after a crash: load, clean up, perhaps crash again while cleaning up, load again.
#pragma once

#include "tests/faults/scenario.h"

namespace cairn {

// Kills the process at operation `at`; then, at random, the process that cleans up, or its power.
std::string TryKill(const Recording& recording, size_t at, SimDisk::Random& random);

// Cuts the power at operation `at`, and at random again during the clean-up.
std::string TryPowerLoss(const Recording& recording, size_t at, SimDisk::Random& random);

// Records every scenario; the first one that fails undisturbed is an error.
Result<std::vector<Recording>> RecordAll(std::vector<Scenario> scenarios);

}  // namespace cairn
