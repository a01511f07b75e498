// Runs a command in place of this process, or as its child, so that a request to stop reaches every rank in
// time to save.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

// Becomes the command: returns only if it cannot be started. Errors: NotFound.
Status Become(const std::vector<std::string>& command);

// Runs the command and stays its parent. Returns its exit status, 128 + N if signal N ended it.
//
// mpirun answers SIGTERM by killing its ranks a second later, in the middle of a save; SIGUSR1 it passes on.
// So the first SIGTERM, SIGINT or SIGHUP (unless nohup has it ignored) calls `stopping` and becomes SIGUSR1
// (the ranks finish their step, save and exit 0); a second one is passed as SIGTERM. SIGUSR1 and SIGUSR2 are
// passed as they are. The command dies with this process. Errors: NotFound if it cannot be started.
Result<int> Supervise(const std::vector<std::string>& command, const std::function<void()>& stopping);

}  // namespace cairn
