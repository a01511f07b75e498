// The steps of a run that another system writes: waits for their writer, watches for new ones, and finds the
// newest one that is whole.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "tools/seal/seal_check.h"
#include "tools/seal/sealer.h"

namespace cairn {

// Gets lines for people: "note: ...", "passed over: ...".
using TellLine = std::function<void(const std::string&)>;

// Waits while a file of the step is younger than `options.quiet_seconds`, but at most ten times as long: its
// writer may continue. If a clock is wrong, the times show nothing, and the files must stay unchanged for the
// same time. Ends early if `options.stop` is set. `tell` gets a line if the wait is not short.
void WaitUntilQuiet(FileSystem& fs, const ForeignStep& step, const SealOptions& options,
                    const TellLine& tell);

// Until `options.stop` is set, looks every `interval_seconds` at the steps of `run` that have no seal, the
// newest first, and calls `seal` for each whose writer is done. If `seal` does not seal a step, it is called
// again when the step's files change.
void WatchRun(FileSystem& fs, const std::string& run, const SealOptions& options, int64_t interval_seconds,
              const std::function<void(const ForeignStep&)>& seal);

// The newest step of `run` that is sealed and has not changed since; nullopt if there is none. Steps without
// a seal, sealed with problems, or changed are passed over, and `tell` gets the reason. Files that were added
// do not damage what was sealed: they are notes. Errors: those of ListForeignSteps; a file that cannot be
// read.
Result<std::optional<ForeignStep>> NewestWholeStep(FileSystem& fs, const std::string& run, SealDepth depth,
                                                   int jobs, const TellLine& tell);

}  // namespace cairn
