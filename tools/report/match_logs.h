// Finds for each log the job script that made it, so that both can bear one name.
#pragma once

#include <string>
#include <vector>

#include "tools/report/job_script.h"
#include "tools/report/log_reader.h"

namespace cairn {

struct LogMatch {
  std::string log;
  std::string script;    // empty: none, or several as good
  std::string evidence;  // "its --output", "its name", "5 flags"
  std::string rename;    // the path the log should have; empty where it has it
};

std::vector<LogMatch> MatchLogs(const std::vector<TrainingLog>& logs, const std::vector<JobScript>& scripts);

}  // namespace cairn
