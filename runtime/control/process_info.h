// Facts about processes on this host, from /proc.
#pragma once

#include <cstdint>
#include <string>

namespace cairn {

// Clock ticks after boot at which `pid` started; with the pid it names a process for good. 0 when there is
// none.
uint64_t ProcessStart(int pid);

// Names the space that this process's pids belong to.
uint64_t PidNamespace();

// The kernel's letter: R running, S sleeping, D waiting for a device, T stopped, Z dead; 0 when there is
// none.
char ProcessState(int pid);

}  // namespace cairn
