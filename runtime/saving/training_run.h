// The run that a training writes into, from its start to its end.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/run/tokenizer_files.h"
#include "runtime/control/control_plane.h"
#include "runtime/saving/checkpointer_options.h"

namespace cairn {

struct TrainingRun {
  std::string run;              // identity
  std::string session;          // random, different at each start
  std::optional<RunLock> lock;  // of --save, on rank 0; nullopt: the training saves nothing
};

// Collective. Rank 0 takes the lock of the run directory, waits for it as --wait-for-lock says and reports
// that, removes leftovers of killed saves, and owns the run. Errors: those of rank 0, the same on all ranks.
Result<TrainingRun> OpenTrainingRun(FileSystem& fs, const TrainConfig& config, ControlPlane& control);

// The tokenizer that its steps are saved with: that of the newest step that has one, first in --save, then in
// --load; else the data's. Steps without one are still good.
std::vector<BesideFile> FindTokenizer(FileSystem& fs, const CheckpointerOptions& options);

}  // namespace cairn
