// Texts that make a scheduler run a policy: a Slurm job that submits its successor, a systemd timer, a line
// of the crontab. Pure; schedule_install.h installs them.
//
// The jobs, units or lines that run one policy are its *chain*. A chain is known by the policy's canonical
// path, so two policies never share one. Its name is cairn-archive-LABEL-ID, where ID is 8 digits of that
// path's digest. LABEL (the policy's tag, or its file's name) is for people: if the tag changes, the chain
// stays the same.
#pragma once

#include <string>
#include <string_view>

#include "ckpt/base/status.h"

namespace cairn {

enum class Scheduler { kSlurm, kSystemd, kCron };
std::string_view Name(Scheduler scheduler);

struct ScheduleOptions {
  std::string cairn;   // absolute path of the program
  std::string policy;  // absolute path of the policy file
  std::string tag;     // of the policy; may be empty
  int every_hours = 24;
  std::string log;                 // absolute path; the output of a run is appended to it
  std::string search_path;         // PATH of the policy's commands, under systemd and cron; empty: theirs
  std::string script;              // path of the Slurm script, which submits itself from there
  std::string partition, account;  // of Slurm; empty: the site's default
  std::string time_limit = "08:00:00";
  int array = 1;  // tasks of the Slurm job, which share a run (team.h)
};

std::string ChainName(const ScheduleOptions& options);
// True if `name` (of a job, a unit, ...) belongs to the policy's chain, whatever its label.
bool IsOfChain(std::string_view name, const std::string& policy);

// Refuses an interval that this scheduler cannot express, and a path whose characters it would change.
// Errors: InvalidArgument that names the option and the remedy.
Status CheckSchedule(const ScheduleOptions& options, Scheduler scheduler);

// Each requires options that CheckSchedule has accepted.
std::string SlurmScript(const ScheduleOptions& options);
std::string SystemdService(const ScheduleOptions& options);
std::string SystemdTimer(const ScheduleOptions& options);
std::string CrontabLine(const ScheduleOptions& options);

// True if the text is a script or unit made by this file, for any policy.
bool IsScheduleText(std::string_view text);
// The crontab without the lines of the policy's chain; every other byte unchanged.
std::string CrontabWithout(std::string_view crontab, const std::string& policy);

}  // namespace cairn
