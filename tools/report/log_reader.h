// Reads one log into the starts of training in it.
#pragma once

#include <string>
#include <vector>

#include "tools/report/log_scan.h"
#include "tools/report/training_start.h"

namespace cairn {

struct TrainingLog {
  std::string file;
  LogFacts facts;
  std::vector<TrainingStart> starts;  // at least one, which is empty if the log has no start
};

// Errors: those of ScanLog.
Result<TrainingLog> ReadTrainingLog(const std::string& path);
// `text` as if it were the file `name`.
TrainingLog ReadTrainingText(std::string_view text, const std::string& name);

}  // namespace cairn
