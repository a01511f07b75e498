// The steps of a run that another system's trainer writes, and whether their writer is done.
//
// Determines for every verb which steps a directory contains. StepAt() recognises directories that are steps:
// by their names (global_step40, iter_0000040, checkpoint-40, step-40), or by their files. Its writer says
// that a step is done in a file that it writes last: `latest` and latest_checkpointed_iteration.txt beside
// the steps, .metadata of torch.distributed.checkpoint and trainer_state.json in them. DeepSpeed's `latest`
// comes before the other ranks have ended (engine.py, save_checkpoint: rank 0 writes it, then all meet), so
// that files must also have been quiet for a while.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/seal/step_files.h"

namespace cairn {

struct ForeignStep {
  std::string path;
  std::optional<int64_t> step;  // nullopt: the directory was given by itself, and its number is not known
};

// The number of the step that `directory` is (StepAt); nullopt for other directories.
std::optional<int64_t> ForeignStepOf(FileSystem& fs, const std::string& directory);

// True if `directory` is itself a step: it is sealed, StepAt() knows it, or it has the file that a system
// writes last into a step.
bool IsForeignStep(FileSystem& fs, const std::string& directory);

// The directories in `directory` that are steps, by number. Steps that the training abandoned when it went
// back (the tracker names an earlier step and is newer than their files) come first. None if it cannot be
// listed.
std::vector<ForeignStep> ListRunSteps(FileSystem& fs, const std::string& directory);

// Those of a run's `steps`, which are some, that the training has saved: all but the ones at the end that are
// being written. The only step counts in any case, and so does one that the tracker names: if it is not
// whole, it was damaged. `passed_over`: why others are being written. Errors: NotFound with a reason if none
// is left.
Result<std::vector<ForeignStep>> SavedSteps(FileSystem& fs, std::vector<ForeignStep> steps,
                                            std::vector<std::string>& passed_over);

// A file that is younger than `quiet_seconds` at `now`; null if there is none. A file further in the future
// does not count: its clock is wrong, so its time does not show when it was written.
const StepFile* YoungFile(const std::vector<StepFile>& files, int64_t now, int64_t quiet_seconds);
const StepFile* FileOfTheFuture(const std::vector<StepFile>& files, int64_t now, int64_t quiet_seconds);

// Why the writer of a step has not finished; empty if it has, as far as is known. `strict`: a run's tracker
// must name the step or a later one (a step that was copied without its run has no tracker). Files that are
// younger than `quiet_seconds` at `now` count as being written; 0 turns this off.
std::string WhyUnfinished(FileSystem& fs, const ForeignStep& step, const std::vector<StepFile>& files,
                          bool strict, int64_t now, int64_t quiet_seconds);

// Why nothing that its writer left proves that the step is finished; empty if its seal, the file that its
// system writes last, or its run's tracker does. Stricter than WhyUnfinished(), which takes a step that
// nothing is known of for finished.
std::string WhyNotProvenFinished(FileSystem& fs, const ForeignStep& step, const std::vector<StepFile>& files,
                                 int64_t now, int64_t quiet_seconds);

// What in its run leads to this step, so that a training may resume from it: the tracker, or a link
// ("LATEST", "last.ckpt"). Empty if nothing does.
std::string NamedBy(FileSystem& fs, const ForeignStep& step);

// "checkpoint-#" of "checkpoint-900": names of one run's steps are equal. What follows "step=" does not
// count.
std::string KindOfName(std::string_view name);

// Directories in `directory` that hold a checkpoint each and have names of one kind, if Cairn does not know
// them as steps: `directory` is a run of a program that Cairn does not know.
std::vector<std::string> UnknownSteps(FileSystem& fs, const std::string& directory);

}  // namespace cairn
