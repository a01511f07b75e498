// Seals a step of another system: lists the files, checks that none is missing, reads every file once, lists
// them again, and writes the seal last. For a run: waits for its writer, watches for new steps, finds the
// newest whole one.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "convert/foreign/open_options.h"
#include "tools/place/found_step.h"
#include "tools/seal/seal_check.h"
#include "tools/seal/step_parts.h"

namespace cairn {

struct SealOptions {
  OpenOptions open;
  int jobs = 2;
  int64_t quiet_seconds = 5;  // that no file may be younger than
  bool strict = false;        // a run's tracker must name the step (finished.h)
  bool anyway = false;        // seals in spite of problems
  bool dry_run = false;       // reads no tensor and writes nothing
  bool check_only = false;    // reads everything and writes nothing
  // Bytes done so far, and bytes in all.
  std::function<void(uint64_t done, uint64_t bytes)> progress = {};
  const std::atomic<bool>* stop = nullptr;
};

enum class SealOutcome {
  kSealed,      // or would be, of a dry run
  kUnfinished,  // its writer is not done
  kProblems,    // something is missing or damaged; nothing was written
};

struct SealResult {
  SealOutcome outcome = SealOutcome::kSealed;
  std::string unfinished;         // why
  std::vector<Problem> problems;  // of kProblems, and those that were sealed with it
  Seal seal;                      // of a dry run without digests
};

// Replaces an existing seal. Errors: those of the disk; Aborted if it was stopped; nothing is written then.
Result<SealResult> SealForeignStep(FileSystem& fs, const FoundStep& step, const SealOptions& options);

// Gets lines for people: "note: ...", "passed over: ...".
using TellLine = std::function<void(const std::string&)>;

// Waits while a file of the step is younger than `options.quiet_seconds`, but at most ten times as long: its
// writer may continue. If a clock is wrong, the times show nothing, and the files must stay unchanged for the
// same time. Ends early if `options.stop` is set. `tell` gets a line if the wait is not short.
void WaitUntilQuiet(FileSystem& fs, const FoundStep& step, const SealOptions& options, const TellLine& tell);

// Until `options.stop` is set, looks every `interval_seconds` at the steps of `run` that have no seal, the
// newest first, and calls `seal` for each whose writer is done. If `seal` does not seal a step, it is called
// again when the step's files change.
void WatchRun(FileSystem& fs, const std::string& run, const SealOptions& options, int64_t interval_seconds,
              const std::function<void(const FoundStep&)>& seal);

// The newest step of `run` that is sealed and has not changed since; nullopt if there is none. Steps without
// a seal, sealed with problems, or changed are passed over, and `tell` gets the reason. Files that were added
// do not damage what was sealed: they are notes. Errors: those of StepsToSeal; a file that cannot be read.
Result<std::optional<FoundStep>> NewestWholeStep(FileSystem& fs, const std::string& run, SealDepth depth,
                                                 int jobs, const TellLine& tell);

}  // namespace cairn
