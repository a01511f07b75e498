// RUN/local: the last branch (branch.h) of which the run's nodes may have steps (ckpt/job) that the run
// lacks. A training that cannot see them, because it keeps none there or its nodes are others, begins a later
// branch: it gives them up, and no later start resumes from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ckpt/base/status.h"
#include "ckpt/io/file_system.h"
#include "ckpt/run/branch.h"

namespace cairn {

// -1: the run has no such file. Errors: Corrupt; those of the disk.
Result<int64_t> LocalBranch(FileSystem& fs, const std::string& run_dir);

// Durable when it returns, so call it before the first local step of the branch is committed; the caller
// holds the RunLock. Does nothing if the file has this branch or a later one.
Status NoteLocalBranch(FileSystem& fs, const std::string& run_dir, int64_t branch);
// The same for the branch of `descent`. `noted`: the last one that this process has noted, at first -1.
Status NoteLocalBranch(FileSystem& fs, const std::string& run_dir, const Descent& descent, int64_t& noted);

// `next`, the descent of `step` by NextDescent, moved to a branch after `local_branch` (-1: as it is). It
// descends from no step of the branches between. `newest`: of the directory.
Descent AfterLocalBranch(Descent next, int64_t step, const std::string& run,
                         const std::optional<BranchedStep>& newest, int64_t local_branch);

}  // namespace cairn
