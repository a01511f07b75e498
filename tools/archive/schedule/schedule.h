// Texts that make a scheduler run a policy by itself: a Slurm job that submits its successor, a systemd
// timer, a line of the crontab. Pure; schedule_install.h puts them in their places.
//
// What runs one policy is its *chain*. It is known by the policy's canonical path, so that two policies never
// share one, and its name says so: cairn-archive-LABEL-ID, ID being 8 digits of that path's digest. LABEL
// (the policy's tag, else its file's name) is for people: a policy whose tag has changed is still the same
// chain.
#pragma once

#include <cstdint>
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
  std::string log;                 // absolute path; what a run prints is appended to it
  std::string search_path;         // PATH of the policy's commands, under systemd and cron; empty: theirs
  std::string script;              // where the Slurm script lies: it submits itself from there
  std::string partition, account;  // of Slurm; empty: the site's default
  std::string time_limit = "08:00:00";
};

std::string ChainName(const ScheduleOptions& options);
// True if `name` (of a job, a unit, ...) is that of the policy's chain, whatever its label.
bool IsOfChain(std::string_view name, const std::string& policy);

// What this scheduler cannot say: an interval, or a path whose characters it would change.
// Errors: InvalidArgument that names the option and what to do.
Status CheckSchedule(const ScheduleOptions& options, Scheduler scheduler);

// Each takes options that CheckSchedule has passed.
std::string SlurmScript(const ScheduleOptions& options);
std::string SystemdService(const ScheduleOptions& options);
std::string SystemdTimer(const ScheduleOptions& options);
std::string CrontabLine(const ScheduleOptions& options);

// True if the text is a script or unit that this file has made, of any policy.
bool IsScheduleText(std::string_view text);
// The crontab without the lines of the policy's chain; every other byte as it was.
std::string CrontabWithout(std::string_view crontab, const std::string& policy);

}  // namespace cairn
