// Installs a policy's chain (schedule.h) in Slurm, systemd or cron, and removes it.
//
// Both are planned first, from the parts of this chain that the scheduler has, as steps that can be shown or
// done. They touch that chain alone: a file that Cairn did not make is never replaced or removed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/archive/schedule/schedule.h"

namespace cairn {

struct ScheduleStep {
  std::string would;                         // "cancel job 12"
  std::string done;                          // "cancelled job 12"
  std::function<Result<std::string>()> act;  // returns a result to show, such as "job 13"
};

struct SchedulePlan {
  std::vector<ScheduleStep> steps;
  std::vector<std::string> notes;  // about jobs and settings that stay
};

// Install replaces an older version of the chain. Slurm starts the first run at once, the others wait for
// their time. Errors: NotFound (there is no such scheduler here), AlreadyExists (somebody else's file is in
// the way), IoError with the scheduler's message.
Result<SchedulePlan> PlanInstall(Scheduler scheduler, const ScheduleOptions& options);
// Uninstall needs only `policy` and, for Slurm, `script`. Without steps there is nothing to remove. A run
// that has started finishes.
Result<SchedulePlan> PlanUninstall(Scheduler scheduler, const ScheduleOptions& options);

}  // namespace cairn
