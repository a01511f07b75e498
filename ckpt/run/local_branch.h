// RUN/local: the last branch (branch.h) of which the run's nodes may have steps (ckpt/job) that the run
// lacks. A training that cannot see them, because it keeps none there or its nodes are others, begins a later
// branch: it gives them up, and no later start resumes from them. So does one that could not load the newest
// of them, or found them to be bad.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ckpt/base/status.h"
#include "ckpt/io/file_system.h"
#include "ckpt/run/branch.h"

namespace cairn {

// As a commit before all others of its branch. nullopt: the run has no such file. Errors: Corrupt; those of
// the disk.
Result<std::optional<BranchedStep>> ReadLocalNote(FileSystem& fs, const std::string& run_dir);
// For AfterLocalBranch(), of a training that sees no step on its nodes.
inline int64_t BranchOf(const std::optional<BranchedStep>& note) { return note ? note->branch() : -1; }

// Durable when they return; the caller holds the RunLock.

// Call it before the first local step of the branch is committed. Does nothing if the file has this branch or
// a later one. `noted`: the last one that this process has noted, at first -1.
Status NoteLocalBranch(FileSystem& fs, const std::string& run_dir, const std::string& run,
                       const Descent& descent, int64_t& noted);
// No later start resumes from a step on the nodes that `after` does not descend from (nullopt: from any).
// Does nothing if the nodes have none. Returns the note's branch, for AfterLocalBranch().
Result<int64_t> GiveUpLocalSteps(FileSystem& fs, const std::string& run_dir,
                                 const std::optional<BranchedStep>& after);

// `next`, the descent of `step` by NextDescent, moved to a branch after `local_branch` (-1: as it is). It
// descends from no step of the branches between. `newest`: of the directory.
Descent AfterLocalBranch(Descent next, int64_t step, const std::string& run,
                         const std::optional<BranchedStep>& newest, int64_t local_branch);

}  // namespace cairn
