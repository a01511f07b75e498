// Runs: starts of training that continue each other, in one log or several, joined.
#pragma once

#include <string>
#include <vector>

#include "tools/report/log_reader.h"

namespace cairn {

struct TrainingRun {
  std::vector<std::string> files;  // in the order of its starts, each once
  TrainingStart sum;               // all starts as one: repeated iterations count once
  int64_t starts = 1;
  std::vector<Failure> failures;  // of the starts before the last
  int64_t redone_iterations = 0;  // log lines' worth
  double redone_seconds = 0;
  double gap_seconds = 0;  // between starts, if both lines have dates
};

// In the order of the logs. `join` false: each start is a run.
std::vector<TrainingRun> JoinRuns(std::vector<TrainingLog> logs, bool join = true);

// Iterations per log line: the usual step from one line to the next, else the configured interval.
int64_t LogInterval(const TrainingStart& start);

}  // namespace cairn
