// Reads a job script: its name, where its log goes, and the flags of the training.
#pragma once

#include <string>
#include <string_view>

#include "tools/report/run_config.h"

namespace cairn {

struct JobScript {
  std::string path;
  std::string job_name;  // #SBATCH --job-name; empty if there is none
  std::string output;    // #SBATCH --output: "logs/%x-%j.out"
  RunConfig config;      // of its flags, with the shell's variables put in, else of its name
};

JobScript ReadJobScript(std::string_view text, const std::string& path);

// Whether a log may be named so by `pattern`, Slurm's (%x the job's name, %j and the like numbers or names).
bool MatchesOutput(std::string_view log_name, std::string_view pattern, std::string_view job_name);

}  // namespace cairn
