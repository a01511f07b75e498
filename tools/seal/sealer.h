// Seals one step of another system: lists the files, checks that none is missing, reads every file once,
// lists them again, and writes the seal last.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "convert/foreign/open_options.h"
#include "tools/seal/foreign_run.h"
#include "tools/seal/seal_record.h"
#include "tools/seal/step_parts.h"

namespace cairn {

struct SealOptions {
  OpenOptions open;
  int jobs = 2;
  int64_t quiet_seconds = 5;  // that no file may be younger than
  bool strict = false;        // a run's tracker must name the step (foreign_run.h)
  bool anyway = false;        // seals in spite of problems
  bool dry_run = false;       // reads no tensor and writes nothing
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
Result<SealResult> SealForeignStep(FileSystem& fs, const ForeignStep& step, const SealOptions& options);

}  // namespace cairn
