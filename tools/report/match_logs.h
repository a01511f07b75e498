// Job scripts (their name, the path of their log, the flags of the training), and which log is of which, to
// give both the same name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/report/log_reader.h"

namespace cairn {

struct JobScript {
  std::string path;
  std::string job_name;  // #SBATCH --job-name, or empty
  std::string output;    // #SBATCH --output: "logs/%x-%j.out"
  RunConfig config;      // from its flags, with the shell's variables expanded, else from its name
};

JobScript ReadJobScript(std::string_view text, const std::string& path);

// True if the log's name fits Slurm's `pattern` (%x is the job's name; %j and others are numbers or names).
bool MatchesOutput(std::string_view log_name, std::string_view pattern, std::string_view job_name);

struct LogMatch {
  std::string log;
  std::string script;    // empty if no script matches best
  std::string evidence;  // "its --output", "its name", "5 flags"
  std::string rename;    // the path that the log should have; empty if it already has it
};

std::vector<LogMatch> MatchLogs(const std::vector<TrainingLog>& logs, const std::vector<JobScript>& scripts);

}  // namespace cairn
