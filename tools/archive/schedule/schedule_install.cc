// Slurm, systemd and cron, each with an install and an uninstall. Each reads and checks the present state
// before its first change, and the order of the changes makes them safe. Slurm gets the new chain before the
// old one is cancelled, and the old script back if sbatch refuses. An uninstall removes the script first, so
// that a run that ends meanwhile submits no successor. Cron's one change reads the crontab again, since it
// may have been edited.

#include "tools/archive/schedule/schedule_install.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>

#include "ckpt/base/child.h"
#include "ckpt/io/replace_file.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxTextBytes = 1 << 20;

// Makes or reports a change: `would` and `done` are verbs, `what` their object.
Status Change(const ScheduleRun& run, const std::string& would, const std::string& done,
              const std::string& what, const std::function<Result<std::string>()>& act) {
  std::string result;
  if (!run.dry_run) {
    CAIRN_ASSIGN_OR_RETURN(result, act());
  }
  run.changed({would + " " + what, done + " " + what, std::move(result)});
  return OkStatus();
}

// A change without a result to show.
Result<std::string> Silently(const Status& status) {
  return status.ok() ? Result<std::string>(std::string()) : status;
}

Status Command(const ScheduleRun& run, const std::string& would, const std::string& done,
               const std::string& what, const std::vector<std::string>& words) {
  return Change(run, would, done, what, [&] { return Silently(ChildOutput(words).status()); });
}

// Errors: AlreadyExists if a file exists that Cairn did not make.
Result<bool> IsThereAndOurs(FileSystem& fs, const std::string& path) {
  const Result<FileInfo> info = fs.Stat(path);
  if (!info.ok() && info.status().kind() == StatusKind::kNotFound) return false;
  if (!info.ok()) return info.status();
  const Result<std::string> text = ReadSmallFile(fs, path, kMaxTextBytes);
  if (text.ok() && IsScheduleText(*text)) return true;
  return AlreadyExists("{} is not a file of 'cairn archive schedule'; move it away, or name another", path);
}

Status Replace(FileSystem& fs, const std::string& path, const std::string& text) {
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, ParentDir(path)));
  return ReplaceSmallFile(fs, path, text);
}

Status Write(const ScheduleRun& run, const std::string& path, const std::string& text) {
  return Change(run, "write", "wrote", path, [&] { return Silently(Replace(run.fs, path, text)); });
}

Status Remove(const ScheduleRun& run, const std::string& path) {
  return Change(run, "remove", "removed", path, [&] { return Silently(run.fs.RemoveFile(path)); });
}

// If the log's directory does not exist, every message is lost, even Slurm's own.
Status CheckLog(FileSystem& fs, const ScheduleOptions& o) {
  const std::string folder = ParentDir(o.log);
  const Result<FileInfo> info = fs.Stat(folder);
  if (info.ok() && info->is_directory()) return OkStatus();
  return NotFound("--log {}: there is no directory {}", o.log, folder);
}

// ---- Slurm

// Variables that would change the output of squeue and the options of the script.
constexpr const char* kSlurmVariables[] = {
    "SQUEUE_STATES",     "SQUEUE_NAMES",     "SQUEUE_PARTITION", "SQUEUE_ACCOUNT",  "SQUEUE_QOS",
    "SQUEUE_USERS",      "SQUEUE_SORT",      "SBATCH_JOB_NAME",  "SBATCH_WAIT",     "SBATCH_TIMELIMIT",
    "SBATCH_NO_REQUEUE", "SBATCH_OPEN_MODE", "SBATCH_OUTPUT",    "SBATCH_ARRAY_INX"};

std::vector<std::string> SlurmWords(std::vector<std::string> words) {
  std::vector<std::string> all = {"env"};
  for (const char* variable : kSlurmVariables) all.insert(all.end(), {"-u", variable});
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

Result<std::string> SlurmOutput(const std::vector<std::string>& words) {
  CAIRN_ASSIGN_OR_RETURN(ChildOutcome outcome, RunChild(SlurmWords(words)));
  if (outcome.exit == 0) return std::move(outcome.out);
  if (outcome.exit == 127) return NotFound("Slurm was not found on this host ({} is not in PATH)", words[0]);
  return IoError("{} failed: {}", words[0], outcome.err);
}

struct Job {
  std::string id, state, name;
  bool has_begun() const {
    return state == "RUNNING" || state == "COMPLETING" || state == "SUSPENDED" || state == "STOPPED";
  }
};

Result<std::vector<Job>> JobsOfChain(const std::string& policy) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text,
                         SlurmOutput({"squeue", "-h", "-u", std::to_string(::getuid()), "-o", "%i %T %j"}));
  std::vector<Job> jobs;
  std::istringstream lines(text);
  for (Job job; lines >> job.id >> job.state && std::getline(lines >> std::ws, job.name);)
    if (IsOfChain(job.name, policy)) jobs.push_back(job);
  return jobs;
}

// Waiting jobs are cancelled, running jobs are noted.
Status EndJobs(const std::vector<Job>& jobs, const ScheduleRun& run) {
  for (const Job& job : jobs) {
    if (job.has_begun())
      run.note(fmt::format("job {} has started and will finish; 'scancel {}' ends it", job.id, job.id));
    else
      CAIRN_RETURN_IF_ERROR(
          Command(run, "cancel", "cancelled", fmt::format("waiting job {}", job.id), {"scancel", job.id}));
  }
  return OkStatus();
}

// If sbatch refuses the new script, the old one is restored: a mistake in an option must not end a chain that
// works. The new job begins once those of `older` that have begun have ended.
Result<std::string> Submit(FileSystem& fs, const std::string& script,
                           const std::optional<std::string>& before, const std::vector<Job>& older) {
  std::vector<std::string> words = {"sbatch", "--parsable", script};
  std::string after;
  for (const Job& job : older)
    if (job.has_begun()) after += ":" + job.id;
  if (!after.empty()) words.insert(words.begin() + 2, "--dependency=afterany" + after);
  const Result<std::string> out = SlurmOutput(words);
  if (out.ok()) return "job " + out->substr(0, out->find_first_of(";\n"));
  CAIRN_RETURN_IF_ERROR(before ? Replace(fs, script, *before) : fs.RemoveFile(script));
  return out.status();
}

Status InstallSlurm(const ScheduleOptions& o, const ScheduleRun& run) {
  CAIRN_ASSIGN_OR_RETURN(const bool there, IsThereAndOurs(run.fs, o.script));
  std::optional<std::string> before;
  if (there) {
    CAIRN_ASSIGN_OR_RETURN(before, ReadSmallFile(run.fs, o.script, kMaxTextBytes));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Job> older, JobsOfChain(o.policy));
  CAIRN_RETURN_IF_ERROR(Write(run, o.script, SlurmScript(o)));
  CAIRN_RETURN_IF_ERROR(
      Change(run, "submit", "submitted", o.script, [&] { return Submit(run.fs, o.script, before, older); }));
  return EndJobs(older, run);
}

// The script is removed first: without it a run that ends meanwhile submits no successor.
Status UninstallSlurm(const ScheduleOptions& o, const ScheduleRun& run) {
  CAIRN_ASSIGN_OR_RETURN(const bool script, IsThereAndOurs(run.fs, o.script));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Job> jobs, JobsOfChain(o.policy));
  if (script) CAIRN_RETURN_IF_ERROR(Remove(run, o.script));
  return EndJobs(jobs, run);
}

// ---- systemd

Result<std::string> UnitFolder() {
  const char* home = std::getenv("HOME");
  const char* config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config != 0) return std::string(config) + "/systemd/user";
  if (home == nullptr) return InvalidArgument("neither XDG_CONFIG_HOME nor HOME is set");
  return std::string(home) + "/.config/systemd/user";
}

Status Systemctl(const ScheduleRun& run, const std::string& would, const std::string& done,
                 const std::string& what, const std::vector<std::string>& words) {
  std::vector<std::string> all = {"systemctl", "--user", "--quiet"};
  all.insert(all.end(), words.begin(), words.end());
  return Command(run, would, done, what, all);
}

Status ReloadUnits(const ScheduleRun& run) {
  return Systemctl(run, "reload", "reloaded", "systemd's units", {"daemon-reload"});
}

// Names of the chain's files, including those with an older label. Errors: also AlreadyExists if one is
// somebody else's.
Result<std::vector<std::string>> UnitsOfChain(FileSystem& fs, const std::string& folder,
                                              const std::string& policy) {
  std::vector<std::string> units;
  const Result<std::vector<std::string>> names = fs.List(folder);
  if (!names.ok() && names.status().kind() == StatusKind::kNotFound) return units;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    const std::filesystem::path path(name);
    const std::string kind = path.extension().string();
    if ((kind != ".service" && kind != ".timer") || !IsOfChain(path.stem().string(), policy)) continue;
    CAIRN_RETURN_IF_ERROR(IsThereAndOurs(fs, JoinPath(folder, name)).status());
    units.push_back(name);
  }
  return units;
}

// A timer needs the user's manager.
Status CheckManager() {
  const Result<ChildOutcome> outcome = RunChild({"systemctl", "--user", "show-environment"});
  if (!outcome.ok()) return outcome.status();
  if (outcome->exit == 0) return OkStatus();
  return NotFound("this user has no systemd on this host (log in again, or use --cron or --slurm): {}",
                  outcome->err);
}

Status RemoveUnits(const std::string& folder, const std::vector<std::string>& units, const ScheduleRun& run) {
  for (const std::string& unit : units)
    if (unit.ends_with(".timer"))
      CAIRN_RETURN_IF_ERROR(Systemctl(run, "disable", "disabled", unit, {"disable", "--now", unit}));
  for (const std::string& unit : units) CAIRN_RETURN_IF_ERROR(Remove(run, JoinPath(folder, unit)));
  return units.empty() ? OkStatus() : ReloadUnits(run);
}

// Without lingering the user's timers stop when the last session ends.
Result<std::string> EnableLinger() {
  const auto shown = RunChild({"loginctl", "show-user", std::to_string(::getuid()), "-p", "Linger"});
  if (shown.ok() && shown->exit == 0 && shown->out == "Linger=yes\n") return std::string("on");
  const auto enabled = RunChild({"loginctl", "--no-ask-password", "enable-linger"});
  if (enabled.ok() && enabled->exit == 0) return std::string("now on");
  return fmt::format(
      "OFF: the timer stops when you log out; ask an administrator for 'loginctl enable-linger {}'",
      ::getuid());
}

Status InstallSystemd(const ScheduleOptions& o, const ScheduleRun& run) {
  CAIRN_RETURN_IF_ERROR(CheckManager());
  CAIRN_ASSIGN_OR_RETURN(const std::string folder, UnitFolder());
  CAIRN_ASSIGN_OR_RETURN(std::vector<std::string> older, UnitsOfChain(run.fs, folder, o.policy));
  const std::string service = ChainName(o) + ".service", timer = ChainName(o) + ".timer";
  for (const std::string& unit : {service, timer}) {
    CAIRN_RETURN_IF_ERROR(IsThereAndOurs(run.fs, JoinPath(folder, unit)).status());
    std::erase(older, unit);
  }
  CAIRN_RETURN_IF_ERROR(RemoveUnits(folder, older, run));  // of another label
  CAIRN_RETURN_IF_ERROR(Write(run, JoinPath(folder, service), SystemdService(o)));
  CAIRN_RETURN_IF_ERROR(Write(run, JoinPath(folder, timer), SystemdTimer(o)));
  CAIRN_RETURN_IF_ERROR(ReloadUnits(run));
  CAIRN_RETURN_IF_ERROR(Systemctl(run, "enable", "enabled", timer, {"enable", timer}));
  CAIRN_RETURN_IF_ERROR(Systemctl(run, "start", "started", timer, {"restart", timer}));
  return Change(run, "enable", "checked", "lingering (timers of a user who has not logged in)", EnableLinger);
}

Status UninstallSystemd(const ScheduleOptions& o, const ScheduleRun& run) {
  CAIRN_ASSIGN_OR_RETURN(const std::string folder, UnitFolder());
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> units, UnitsOfChain(run.fs, folder, o.policy));
  if (units.empty()) return OkStatus();
  CAIRN_RETURN_IF_ERROR(CheckManager());
  run.note("a run that has started will finish, and lingering is not changed");
  return RemoveUnits(folder, units, run);
}

// ---- cron

// Any failure except "no crontab" is an error: the write that follows would lose lines that were not read.
Result<std::string> ReadCrontab() {
  Result<ChildOutcome> outcome = RunChild({"crontab", "-l"});
  if (!outcome.ok()) return outcome.status();
  if (outcome->exit == 0) return std::move(outcome->out);
  if (outcome->err.find("no crontab for") != std::string::npos) return std::string();
  return IoError("'crontab -l' failed, and a crontab that cannot be read is not changed: {}", outcome->err);
}

Status WriteCrontab(const std::string& text) {
  return ChildOutput(text.empty() ? std::vector<std::string>{"crontab", "-r"}
                                  : std::vector<std::string>{"crontab", "-"},
                     text)
      .status();
}

// Reads the crontab again: it may have been edited since it was checked.
Result<std::string> SetLine(const std::string& policy, const std::string& line) {
  CAIRN_ASSIGN_OR_RETURN(const std::string crontab, ReadCrontab());
  std::string next = CrontabWithout(crontab, policy);
  if (!next.empty() && !next.ends_with('\n')) next += '\n';
  next += line;
  return Silently(next == crontab ? OkStatus() : WriteCrontab(next));
}

Status InstallCron(const ScheduleOptions& o, const ScheduleRun& run) {
  CAIRN_RETURN_IF_ERROR(ReadCrontab().status());
  const std::string line = CrontabLine(o);
  return Change(run, "put", "put", "into the crontab: " + line.substr(0, line.size() - 1),
                [&] { return SetLine(o.policy, line); });
}

Status UninstallCron(const ScheduleOptions& o, const ScheduleRun& run) {
  CAIRN_ASSIGN_OR_RETURN(const std::string crontab, ReadCrontab());
  if (CrontabWithout(crontab, o.policy) == crontab) return OkStatus();
  return Change(run, "remove", "removed", "the line of " + ChainName(o) + " from the crontab",
                [&] { return SetLine(o.policy, ""); });
}

}  // namespace

Status InstallSchedule(Scheduler scheduler, const ScheduleOptions& o, const ScheduleRun& run) {
  CAIRN_RETURN_IF_ERROR(CheckLog(run.fs, o));
  if (scheduler == Scheduler::kSlurm) return InstallSlurm(o, run);
  return scheduler == Scheduler::kSystemd ? InstallSystemd(o, run) : InstallCron(o, run);
}

Status UninstallSchedule(Scheduler scheduler, const ScheduleOptions& o, const ScheduleRun& run) {
  if (scheduler == Scheduler::kSlurm) return UninstallSlurm(o, run);
  return scheduler == Scheduler::kSystemd ? UninstallSystemd(o, run) : UninstallCron(o, run);
}

}  // namespace cairn
