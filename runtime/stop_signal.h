// SIGTERM and SIGUSR1 as a flag: the step in progress ends, the state is saved, the program exits with status
// 0.
#pragma once

namespace cairn {

// From now on the signals do not end the process.
void InstallStopSignals();

// Whether one has come.
bool StopRequested();

}  // namespace cairn
