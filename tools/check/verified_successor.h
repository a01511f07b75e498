// Which step stays on scratch while an archive removes another one of its run.
#pragma once

#include <string>

#include "ckpt/run/deletion.h"

namespace cairn {

// For the step at `step_directory` to go: a newer healthy step, every byte of which was verified since its
// files changed (verify_record.h), and that has all roles of tensors that this one has, so that a training
// resumes from it. A step that is on record as verified is taken first; otherwise the newest one is read, and
// what is found is recorded. Processes that need the same step wait for the one that reads it. Errors: those
// of HealthySuccessor::For.
Result<HealthySuccessor> FindVerifiedSuccessor(FileSystem& fs, const std::string& step_directory,
                                               bool show_progress);

}  // namespace cairn
