// Possible results of the system calls below the real file system, injected at link time.
//
// The program is linked with --wrap for each call, so that posix_file_system.cc, unchanged, calls the ones
// here.
#pragma once

#include "tests/faults/goal.h"

namespace cairn {

// A save, a read and a prune on a real directory in memory, where each call in turn is interrupted, cut short
// or fails with EIO, ENOSPC or EDQUOT. Part of goal errors; its seeds begin at `first_seed`.
void RunSystemCalls(uint64_t first_seed, const GoalOptions& options, Tally& tally);

}  // namespace cairn
