// One failure in one scenario; shared by the goal and by the mutants that it must catch.
#pragma once

#include "tests/faults/failing_file_system.h"
#include "tests/faults/scenario.h"

namespace cairn {

// A mutant's layer between the work and the failing disk.
using FsWrapper = std::function<std::unique_ptr<FileSystem>(FileSystem&)>;

// The complaint, or nothing. `fired`: false if there were fewer calls; `wrapper` may be empty.
std::string TryFailure(const Scenario& scenario, const Failure& failure, const FsWrapper& wrapper,
                       SimDisk::Random& random, bool& fired);

}  // namespace cairn
