// Exit statuses of cairn and cairn-train, the same for every verb.
#pragma once

namespace cairn {

enum ExitCode : int {
  kExitDone = 0,
  kExitCheckFailed = 1,  // the check failed, the two differ, or the training diverged
  kExitTrouble = 2,      // misuse, or something stood in the way

  // A rank or a node of a training was lost, or a deadline passed: the same command continues the training.
  // EX_TEMPFAIL of sysexits.h; shells, srun and mpirun have no use of their own for it.
  kExitLostPeer = 75,
};

}  // namespace cairn
