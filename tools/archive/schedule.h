// Texts that make a scheduler run the archive by itself: a Slurm job that submits its successor, a systemd
// timer, a crontab line. Pure.
#pragma once

#include <string>

namespace cairn {

struct ScheduleOptions {
  std::string cairn;   // path of the program
  std::string policy;  // path of the policy file
  int every_hours = 24;
  int minute = 17;                 // past the hour, of cron
  std::string script;              // where the Slurm script will lie: it submits itself from there
  std::string log;                 // of the Slurm job
  std::string partition, account;  // of Slurm; empty: the site's default
  std::string time_limit = "08:00:00";
};

std::string SlurmScript(const ScheduleOptions& options);
std::string SystemdService(const ScheduleOptions& options);
std::string SystemdTimer(const ScheduleOptions& options);
std::string CrontabLine(const ScheduleOptions& options);

// 'it'\''s': one word of a shell.
std::string ShellWord(const std::string& text);

}  // namespace cairn
