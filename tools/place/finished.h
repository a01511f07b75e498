// Whether the writer of another system's step is done.
//
// It says so in a file that it writes last: `latest` and latest_checkpointed_iteration.txt beside the steps,
// .metadata of torch.distributed.checkpoint and trainer_state.json in them. DeepSpeed's `latest` comes before
// the other ranks have ended (engine.py, save_checkpoint: rank 0 writes it, then all meet), so that files
// must also have been quiet for a while.
#pragma once

#include <string>
#include <vector>

#include "tools/place/found_step.h"
#include "tools/place/step_files.h"

namespace cairn {

// Those of a run's `steps`, which are some, that the training has saved: all but the ones at the end that are
// being written. The only step counts in any case, and so does one that the tracker names: if it is not
// whole, it was damaged. `passed_over`: why others are being written. Errors: NotFound with a reason if none
// is left.
Result<std::vector<FoundStep>> SavedSteps(FileSystem& fs, std::vector<FoundStep> steps,
                                          std::vector<std::string>& passed_over);

// The first file that is younger than `quiet_seconds` at `now`, or null. A file further in the future does
// not count: its clock is wrong, so its time does not show when it was written.
const StepFile* YoungFile(const std::vector<StepFile>& files, int64_t now, int64_t quiet_seconds);
const StepFile* FileOfTheFuture(const std::vector<StepFile>& files, int64_t now, int64_t quiet_seconds);

// Why the writer of a step has not finished; empty if it has, as far as is known. `strict`: a run's tracker
// must name the step or a later one (a step that was copied without its run has no tracker). Files that are
// younger than `quiet_seconds` at `now` count as being written; 0 turns this off.
std::string WhyUnfinished(FileSystem& fs, const FoundStep& step, const std::vector<StepFile>& files,
                          bool strict, int64_t now = 0, int64_t quiet_seconds = 0);

// Why nothing that its writer left proves that the step is finished; empty if its seal, the file that its
// system writes last, or its run's tracker does. Stricter than WhyUnfinished(), which takes a step that
// nothing is known of for finished.
std::string WhyNotProvenFinished(FileSystem& fs, const FoundStep& step, const std::vector<StepFile>& files,
                                 int64_t now, int64_t quiet_seconds);

// True if the training went back before the step: the tracker names an earlier one and was written later.
bool IsLeftBehind(FileSystem& fs, const FoundStep& step);

// What in its run leads to this step, so that a training may resume from it: the tracker, or a link
// ("LATEST", "last.ckpt"). Empty if nothing does.
std::string NamedBy(FileSystem& fs, const FoundStep& step);

}  // namespace cairn
