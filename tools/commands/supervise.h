// Runs a command and remains its parent, so a request to stop reaches every rank in time to save.
//
// mpirun answers SIGTERM by killing its ranks a second later, in the middle of a save; SIGUSR1 it passes on.
// So the first SIGTERM, SIGINT or SIGHUP (unless nohup has it ignored) becomes SIGUSR1 (the ranks finish
// their step, save and exit 0); a second one is passed as SIGTERM. SIGUSR1 and SIGUSR2 are passed as they
// are. The command dies with this process.
#pragma once

#include <string>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

// The command's exit status, 128 + N if signal N ended it. Errors: NotFound if it cannot be started.
Result<int> Supervise(const std::vector<std::string>& command);

}  // namespace cairn
