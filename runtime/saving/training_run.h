// The run that a training writes into, from its start to its end.
#pragma once

#include <optional>
#include <string>

#include "ckpt/io/file_system.h"
#include "ckpt/run/run_dir.h"
#include "runtime/config/train_config.h"
#include "runtime/control/control_plane.h"

namespace cairn {

struct TrainingRun {
  std::string run;              // identity
  std::string session;          // random, different at each start
  std::optional<RunLock> lock;  // of --save, on rank 0; nullopt: the training saves nothing
};

// Collective. Rank 0 takes the lock of the run directory, waits for it as --wait-for-lock says and reports
// that, removes leftovers of killed saves, and owns the run. Errors: those of rank 0, the same on all ranks.
Result<TrainingRun> OpenTrainingRun(FileSystem& fs, const TrainConfig& config, ControlPlane& control);

}  // namespace cairn
