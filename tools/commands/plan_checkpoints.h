// cairn plan --checkpoints: how often to save where, from a run's events or from flags.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/model/save_interval.h"

namespace cairn {

struct CheckpointFlags {
  std::string run;  // empty: only flags
  std::vector<std::string> logs;
  std::vector<std::string> tiers;
  std::vector<std::string> failures;
  std::vector<std::string> redundancy;
  double hours = 0;
  double step_seconds = 0;
  uint64_t step_bytes = 0;
  double restart_seconds = 0;
  double background_cost = kBackgroundCost;
  double archive_hours = 43800;  // five years
};

void DeclareCheckpointOptions(CLI::App& plan, CheckpointFlags& options);

// The flags of `cairn plan` that count here, too.
struct SharedPlanFlags {
  int64_t nodes = 0;      // 0: not given
  double mtbf_hours = 0;  // of one node; 0: not given
  int64_t keep_last = 0;
  uint64_t quota_bytes = 0;
  bool json = false;
};

// Prints the plan. Errors: InvalidArgument where a fact is missing or impossible; those of MeasureRun.
Result<int> PlanCheckpoints(const CLI::App& plan, const CheckpointFlags& options,
                            const SharedPlanFlags& shared);

}  // namespace cairn
