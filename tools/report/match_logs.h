// Finds the job script of each log, to give both the same name.
#pragma once

#include <string>
#include <vector>

#include "tools/report/job_script.h"
#include "tools/report/log_reader.h"

namespace cairn {

struct LogMatch {
  std::string log;
  std::string script;    // empty if no script matches best
  std::string evidence;  // "its --output", "its name", "5 flags"
  std::string rename;    // the path that the log should have; empty if it already has it
};

std::vector<LogMatch> MatchLogs(const std::vector<TrainingLog>& logs, const std::vector<JobScript>& scripts);

}  // namespace cairn
