// A plan as the flags of a training program, and as a Slurm script that runs `cairn train`; the name that
// job, script and log share.
#pragma once

#include <string>
#include <vector>

#include "tools/plan/search.h"

namespace cairn {

// The flags of setup.program for TP, PP and its stages, the batch, ZeRO and recomputation, each with its
// value; for a mixture of experts also EP and ETP. Of Megatron-LM those of 2024 and later (megatron-core
// 0.10); of Megatron-DeepSpeed BigScience's. Requires StagesAreWhole.
std::vector<std::string> LaunchFlags(const ModelShape& shape, const RunSetup& setup);

// "181B-zero1-tp8-mbs-4-pp12-dp-4-gas-128": cairn report reads the configuration back out of it.
std::string JobName(const PlanRequest& request, const RunSetup& setup);

struct JobOptions {
  double samples = 0;  // to train
  std::string time =
      "20:00:00";  // Slurm's limit of one job; the script requeues itself until training is done
  int array = 0;   // jobs of an array, one after another, instead of one that requeues itself; 0: none
  int64_t save_interval = 0;  // steps between checkpoints; 0: only at the end
  std::string arguments;      // appended to cairn train as they are: data, learning rate, intervals
};

// Bash; stops at the first error. It saves and exits on the signal, and resumes in the next job.
std::string JobScriptText(const PlanRequest& request, const RunSetup& setup, const JobOptions& options);

}  // namespace cairn
