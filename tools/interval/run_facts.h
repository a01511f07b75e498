// What a run's directory, its events and its logs show of the costs of saves and of failures.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/run/run_events.h"
#include "tools/interval/checkpoint_plan.h"

namespace cairn {

struct MeasuredRun {
  int64_t starts = 0;  // of the training; 0: neither events nor a log shows any
  double first_start = 0;
  FailureRecord failures;
  std::vector<int64_t> several_lost;  // SavingFacts
  int64_t failed_saves = 0;           // that the events have
  int64_t nodes = 0, ranks = 0;       // of the last start; 0: not known
  std::optional<double> restart_seconds;
  std::optional<double> step_seconds;
  double step_bytes = 0;  // of the newest step; 0: not known
  std::optional<TierCost> memory, disk, run;
};

// Takes what the steps and the events of a run directory show. Errors: NotFound if the directory has
// neither; those of ReadEvents and of listing it.
Status MeasureRun(FileSystem& fs, const std::string& run_dir, MeasuredRun& measured);

// Takes what the logs of a training show, in the order of its starts: times of iterations and saves, and if
// there are no events, the starts. Errors: those of reading; InvalidArgument for a file that is not the log
// of a training.
Status MeasureLogs(const std::vector<std::string>& logs, MeasuredRun& measured);

// The starts among events. `newest_step_time`: when the newest step was committed, or 0.
void TakeEvents(const std::vector<RunEvent>& events, double newest_step_time, MeasuredRun& measured);

// Failures per second that local steps do not survive, by the run's events; a file of events that cannot be
// read counts as none.
double FailuresBeyondLocal(FileSystem& fs, const std::string& run_dir, bool parity);

}  // namespace cairn
