#include "tools/archive/schedule.h"

#include <fmt/format.h>

namespace cairn {
namespace {

std::string RunCommand(const ScheduleOptions& o) {
  return fmt::format("{} archive run --policy {}", ShellWord(o.cairn), ShellWord(o.policy));
}

// systemd reads "..." with backslashes, and % as its own.
std::string UnitWord(const std::string& text) {
  std::string word = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') word += '\\';
    word += c;
    if (c == '%') word += '%';
  }
  word.push_back('"');
  return word;
}

}  // namespace

std::string ShellWord(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                          "_-./:=@,+") == text.npos;
  if (plain) return text;
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'') word.append("'\\'");
    word.push_back(c);
  }
  word.push_back('\'');
  return word;
}

std::string SlurmScript(const ScheduleOptions& o) {
  std::string extra;
  if (!o.partition.empty()) extra += fmt::format("#SBATCH --partition={}\n", o.partition);
  if (!o.account.empty()) extra += fmt::format("#SBATCH --account={}\n", o.account);
  return fmt::format(
      R"(#!/bin/bash
# Archives by policy, and submits itself for the next time before it starts, so that no failure ends the chain.
# --dependency=singleton: of jobs with this name one runs at a time; a run that lasts longer delays the next.
#SBATCH --job-name=cairn-archive
#SBATCH --ntasks=1
#SBATCH --time={}
#SBATCH --dependency=singleton
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={}
{}
script={}
# A requeued job has submitted its successor already.
if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then
  sbatch --begin=now+{}hours "$script" || echo "cairn-archive: could not submit the next run" >&2
fi
exec {}
)",
      o.time_limit, o.log, extra, ShellWord(o.script), o.every_hours, RunCommand(o));
}

std::string SystemdService(const ScheduleOptions& o) {
  return fmt::format(
      R"([Unit]
Description=Archives checkpoints by policy
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
ExecStart={} archive run --policy {}
Nice=10
IOSchedulingClass=idle
)",
      UnitWord(o.cairn), UnitWord(o.policy));
}

std::string SystemdTimer(const ScheduleOptions& o) {
  return fmt::format(
      R"([Unit]
Description=Archives checkpoints every {0} hours

[Timer]
OnBootSec=15min
OnUnitActiveSec={0}h
RandomizedDelaySec=10min
Persistent=true

[Install]
WantedBy=timers.target
)",
      o.every_hours);
}

std::string CrontabLine(const ScheduleOptions& o) {
  std::string command = RunCommand(o);
  for (size_t at = 0; (at = command.find('%', at)) != command.npos; at += 2) command.insert(at, 1, '\\');
  if (o.every_hours >= 24) return fmt::format("{} 3 */{} * * {}\n", o.minute, o.every_hours / 24, command);
  return fmt::format("{} */{} * * * {}\n", o.minute, o.every_hours, command);
}

}  // namespace cairn
