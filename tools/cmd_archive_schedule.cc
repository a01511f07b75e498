#include "tools/cmd_archive_schedule.h"

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "ckpt/file_system.h"
#include "tools/archive/policy.h"
#include "tools/archive/schedule.h"
#include "tools/archive/source.h"
#include "tools/exit_code.h"

namespace cairn {
namespace {

struct ScheduleArguments {
  std::string policy;
  bool slurm = false, systemd = false, cron = false;
  bool install = false;
  ScheduleOptions options;
};

Status RunShell(const std::string& command) {
  const int result = std::system(command.c_str());
  if (WIFEXITED(result) && WEXITSTATUS(result) == 0) return OkStatus();
  return IoError("'{}' failed", command);
}

// Puts a text in its place; what is there is replaced whole.
Status Replace(const std::string& path, const std::string& text) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, std::filesystem::path(path).parent_path().string()));
  const std::string next = path + ".new";
  CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, next));
  CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, next, text));
  return fs.Rename(next, path);
}

Status InstallSlurm(const ScheduleOptions& o) {
  CAIRN_RETURN_IF_ERROR(Replace(o.script, SlurmScript(o)));
  return RunShell("sbatch " + ShellWord(o.script));
}

Status InstallSystemd(const ScheduleOptions& o) {
  const char* home = std::getenv("HOME");
  const char* config = std::getenv("XDG_CONFIG_HOME");
  if (home == nullptr && config == nullptr) return InvalidArgument("neither XDG_CONFIG_HOME nor HOME is set");
  const std::string folder =
      (config != nullptr ? std::string(config) : std::string(home) + "/.config") + "/systemd/user";
  CAIRN_RETURN_IF_ERROR(Replace(folder + "/cairn-archive.service", SystemdService(o)));
  CAIRN_RETURN_IF_ERROR(Replace(folder + "/cairn-archive.timer", SystemdTimer(o)));
  return RunShell("systemctl --user daemon-reload && systemctl --user enable --now cairn-archive.timer");
}

// The crontab without an older line for the same policy, and with this one.
Status InstallCron(const ScheduleOptions& o) {
  std::string line = CrontabLine(o);
  line.pop_back();
  const std::string mine = ShellWord("archive run --policy " + ShellWord(o.policy));
  return RunShell(fmt::format("{{ crontab -l 2>/dev/null | grep -vF -e {}; echo {}; }} | crontab -", mine,
                              ShellWord(line)));
}

Result<int> RunSchedule(const ScheduleArguments& arguments) {
  CAIRN_RETURN_IF_ERROR(ReadPolicy(arguments.policy).status());  // a schedule of a broken policy helps nobody
  ScheduleOptions o = arguments.options;
  o.policy = CanonicalPath(arguments.policy);
  o.cairn = CanonicalPath("/proc/self/exe");
  if (o.script.empty()) o.script = o.policy + ".sbatch";
  if (o.log.empty()) o.log = o.policy + ".log";
  if (!arguments.install) {
    if (arguments.slurm) fmt::print("{}", SlurmScript(o));
    if (arguments.systemd)
      fmt::print("# cairn-archive.service\n{}\n# cairn-archive.timer\n{}", SystemdService(o),
                 SystemdTimer(o));
    if (arguments.cron) fmt::print("{}", CrontabLine(o));
    return kExitDone;
  }
  CAIRN_RETURN_IF_ERROR(arguments.slurm     ? InstallSlurm(o)
                        : arguments.systemd ? InstallSystemd(o)
                                            : InstallCron(o));
  return kExitDone;
}

}  // namespace

void AddArchiveScheduleCommand(CLI::App& archive, Verb& verb) {
  const auto arguments = std::make_shared<ScheduleArguments>();
  CLI::App* schedule = archive.add_subcommand("schedule", "print or install what runs a policy by itself");
  schedule->add_option("POLICY", arguments->policy, "the policy, a TOML file")->required();
  CLI::Option_group* kind = schedule->add_option_group("scheduler");
  kind->add_flag("--slurm", arguments->slurm, "a job that submits its successor");
  kind->add_flag("--systemd", arguments->systemd, "a service and its timer, of the user");
  kind->add_flag("--cron", arguments->cron, "a line of the crontab");
  kind->require_option(1);
  schedule->add_flag("--install", arguments->install,
                     "submit the job, enable the timer or put the line into the crontab; otherwise print it");
  ScheduleOptions& o = arguments->options;
  schedule->add_option("--every-hours", o.every_hours, "how often (default 24)")
      ->check(CLI::Range(1, 24 * 7))
      ->option_text("N");
  schedule->add_option("--script", o.script, "where the Slurm script lies (default POLICY.sbatch)");
  schedule->add_option("--log", o.log, "of the Slurm job (default POLICY.log)");
  schedule->add_option("--partition", o.partition, "of the Slurm job");
  schedule->add_option("--account", o.account, "of the Slurm job");
  schedule->add_option("--time", o.time_limit, "limit of the Slurm job (default 08:00:00)");
  schedule->footer(HelpFooter("cairn archive schedule archive.toml --slurm --install"));
  schedule->callback([arguments, &verb] { verb = [arguments] { return RunSchedule(*arguments); }; });
}

}  // namespace cairn
