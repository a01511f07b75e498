// Puts a policy's chain (schedule.h) into Slurm, systemd or cron, and takes it out again.
//
// Both are planned first, from what the scheduler has of this chain, as steps that can be shown or done. They
// touch that chain alone: a file that Cairn did not make is never replaced or removed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/archive/schedule/schedule.h"

namespace cairn {

struct ScheduleStep {
  std::string would;                         // "cancel job 12"
  std::string done;                          // "cancelled job 12"
  std::function<Result<std::string>()> act;  // what there is to add: "job 13"
};

struct SchedulePlan {
  std::vector<ScheduleStep> steps;
  std::vector<std::string> notes;  // what stays as it is, and why
};

// Install replaces what there is of the chain. Slurm starts the first run at once, the others wait for their
// time. Errors: NotFound (there is no such scheduler here), AlreadyExists (a file of somebody else is in the
// way), IoError with what the scheduler says.
Result<SchedulePlan> PlanInstall(Scheduler scheduler, const ScheduleOptions& options);
// Uninstall needs no more than `policy` and, of Slurm, `script`. No steps: there is nothing of this chain. A
// run that has begun is left to end.
Result<SchedulePlan> PlanUninstall(Scheduler scheduler, const ScheduleOptions& options);

}  // namespace cairn
