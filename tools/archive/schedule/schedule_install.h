// Installs a policy's chain (schedule.h) in Slurm, systemd or cron, and removes it.
//
// Everything is read and checked first. Then the changes are made one by one, or only reported. They touch
// only that chain: a file that Cairn did not make is never replaced or removed.
#pragma once

#include <functional>
#include <string>

#include "ckpt/io/file_system.h"
#include "tools/archive/schedule/schedule.h"

namespace cairn {

struct ScheduleChange {
  std::string would;   // "cancel job 12"
  std::string done;    // "cancelled job 12"
  std::string result;  // to show, such as "job 13"; empty in a dry run
};

// How changes are made and shown.
struct ScheduleRun {
  FileSystem& fs;
  bool dry_run = false;                                // reports the changes without making them
  std::function<void(const ScheduleChange&)> changed;  // after each
  std::function<void(const std::string&)> note;        // about jobs and settings that stay
};

// Install replaces an older version of the chain. Slurm starts the first run at once, the others wait for
// their time. Errors: NotFound (there is no such scheduler here), AlreadyExists (somebody else's file is in
// the way), IoError with the scheduler's message.
Status InstallSchedule(Scheduler scheduler, const ScheduleOptions& options, const ScheduleRun& run);
// Uninstall needs only `policy` and, for Slurm, `script`. Without a change there is nothing to remove. A run
// that has started finishes.
Status UninstallSchedule(Scheduler scheduler, const ScheduleOptions& options, const ScheduleRun& run);

}  // namespace cairn
