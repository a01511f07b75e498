// Reads a job script: its name, the path of its log, and the flags of the training.
#pragma once

#include <string>
#include <string_view>

#include "tools/report/run_config.h"

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

}  // namespace cairn
