// Finds the step that stays on scratch while an archive removes another one of its run.
#pragma once

#include <string>

#include "ckpt/run/deletion.h"

namespace cairn {

// Finds what permits the deletion of the step at `step_directory`: a newer healthy step that has all roles of
// tensors of this one, so that a training can resume from it, and whose every byte was verified since its
// files changed (verify_record.h). Takes one that is recorded as verified; otherwise reads the newest one and
// records the result. Processes that need the same step wait for the one that reads it. Errors: those of
// HealthySuccessor::For.
Result<HealthySuccessor> FindVerifiedSuccessor(FileSystem& fs, const std::string& step_directory,
                                               bool show_progress);

}  // namespace cairn
