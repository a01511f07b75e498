// Exit statuses of cairn and cairn-train, the same for every verb.
#pragma once

#include "ckpt/base/status.h"

namespace cairn {

enum ExitCode : int {
  kExitDone = 0,
  kExitCheckFailed = 1,  // the check failed, the two differ, or the training diverged
  kExitTrouble = 2,      // misuse, or the command could not do its work

  // A rank or a node was lost, a deadline passed, or a training gave up its local steps: running the same
  // command again continues the work.
  // EX_TEMPFAIL of sysexits.h; shells, srun and mpirun do not use it themselves.
  kExitLostPeer = 75,
};

// The status of a command that ends with this failure.
inline int ExitOf(const Status& failure) {
  return failure.kind() == StatusKind::kAborted ? kExitLostPeer : kExitTrouble;
}

}  // namespace cairn
