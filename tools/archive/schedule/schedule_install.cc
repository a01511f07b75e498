// Slurm, systemd and cron, each with an install and an uninstall. Planning only reads and checks; all
// changes are in the steps, and their order makes them safe. Slurm gets the new chain before the old one is
// cancelled, and the old script back if sbatch refuses. An uninstall removes the script first, so that a
// run that ends meanwhile submits no successor. Cron's one step reads the crontab again, since somebody may
// have edited it.

#include "tools/archive/schedule/schedule_install.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>

#include "ckpt/io/replace_file.h"
#include "tools/process/child.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxTextBytes = 1 << 20;

ScheduleStep Step(const std::string& would, const std::string& done, const std::string& what,
                  std::function<Result<std::string>()> act) {
  return {would + " " + what, done + " " + what, std::move(act)};
}

// A step without a result to show.
ScheduleStep PlainStep(const std::string& would, const std::string& done, const std::string& what,
                       std::function<Status()> act) {
  return Step(would, done, what, [act = std::move(act)]() -> Result<std::string> {
    CAIRN_RETURN_IF_ERROR(act());
    return std::string();
  });
}

ScheduleStep CommandStep(const std::string& would, const std::string& done, const std::string& what,
                         std::vector<std::string> words) {
  return PlainStep(would, done, what, [words = std::move(words)] { return ChildOutput(words).status(); });
}

// Errors: AlreadyExists if a file is there that Cairn did not make.
Result<bool> IsThereAndOurs(const std::string& path) {
  FileSystem& fs = FileSystem::Posix();
  const Result<FileInfo> info = fs.Stat(path);
  if (!info.ok() && info.status().kind() == StatusKind::kNotFound) return false;
  if (!info.ok()) return info.status();
  const Result<std::string> text = ReadSmallFile(fs, path, kMaxTextBytes);
  if (text.ok() && IsScheduleText(*text)) return true;
  return AlreadyExists("{} is not a file of 'cairn archive schedule'; move it away, or name another", path);
}

Status Replace(const std::string& path, const std::string& text) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, std::filesystem::path(path).parent_path().string()));
  return ReplaceSmallFile(fs, path, text);
}

Result<ScheduleStep> WriteStep(const std::string& path, const std::string& text) {
  CAIRN_RETURN_IF_ERROR(IsThereAndOurs(path).status());
  return PlainStep("write", "wrote", path, [path, text] { return Replace(path, text); });
}

ScheduleStep RemoveStep(const std::string& path) {
  return PlainStep("remove", "removed", path, [path] { return FileSystem::Posix().RemoveFile(path); });
}

// If the log's directory does not exist, every message is lost, even Slurm's own.
Status CheckLog(const ScheduleOptions& o) {
  const std::string folder = std::filesystem::path(o.log).parent_path().string();
  const Result<FileInfo> info = FileSystem::Posix().Stat(folder);
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
  if (outcome.exit == 127) return NotFound("there is no Slurm here ({} is not in PATH)", words[0]);
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
Status EndWaitingJobs(const std::string& policy, SchedulePlan& plan) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Job> jobs, JobsOfChain(policy));
  for (const Job& job : jobs) {
    if (job.has_begun())
      plan.notes.push_back(
          fmt::format("job {} has started and will finish; 'scancel {}' ends it", job.id, job.id));
    else
      plan.steps.push_back(
          CommandStep("cancel", "cancelled", fmt::format("waiting job {}", job.id), {"scancel", job.id}));
  }
  return OkStatus();
}

// If sbatch refuses the new script, the old one is restored: a mistake in an option must not end a chain that
// works.
Result<std::string> Submit(const std::string& script, const std::optional<std::string>& before) {
  const Result<std::string> out = SlurmOutput({"sbatch", "--parsable", "--dependency=singleton", script});
  if (out.ok()) return "job " + out->substr(0, out->find_first_of(";\n"));
  CAIRN_RETURN_IF_ERROR(before ? Replace(script, *before) : FileSystem::Posix().RemoveFile(script));
  return out.status();
}

Result<SchedulePlan> InstallSlurm(const ScheduleOptions& o) {
  SchedulePlan plan, older;
  CAIRN_ASSIGN_OR_RETURN(const bool there, IsThereAndOurs(o.script));
  std::optional<std::string> before;
  if (there) {
    CAIRN_ASSIGN_OR_RETURN(before, ReadSmallFile(FileSystem::Posix(), o.script, kMaxTextBytes));
  }
  CAIRN_RETURN_IF_ERROR(EndWaitingJobs(o.policy, older));
  CAIRN_ASSIGN_OR_RETURN(ScheduleStep write, WriteStep(o.script, SlurmScript(o)));
  plan.steps.push_back(std::move(write));
  plan.steps.push_back(
      Step("submit", "submitted", o.script, [script = o.script, before] { return Submit(script, before); }));
  for (ScheduleStep& step : older.steps) plan.steps.push_back(std::move(step));
  plan.notes = std::move(older.notes);
  return plan;
}

// The script is removed first: without it a run that ends meanwhile submits no successor.
Result<SchedulePlan> UninstallSlurm(const ScheduleOptions& o) {
  SchedulePlan plan;
  CAIRN_ASSIGN_OR_RETURN(const bool script, IsThereAndOurs(o.script));
  if (script) plan.steps.push_back(RemoveStep(o.script));
  CAIRN_RETURN_IF_ERROR(EndWaitingJobs(o.policy, plan));
  return plan;
}

// ---- systemd

Result<std::string> UnitFolder() {
  const char* home = std::getenv("HOME");
  const char* config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config != 0) return std::string(config) + "/systemd/user";
  if (home == nullptr) return InvalidArgument("neither XDG_CONFIG_HOME nor HOME is set");
  return std::string(home) + "/.config/systemd/user";
}

std::vector<std::string> Systemctl(const std::vector<std::string>& words) {
  std::vector<std::string> all = {"systemctl", "--user", "--quiet"};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

// Names of the chain's files, including those with an older label.
Result<std::vector<std::string>> UnitsOfChain(const std::string& folder, const std::string& policy) {
  FileSystem& fs = FileSystem::Posix();
  std::vector<std::string> units;
  const Result<std::vector<std::string>> names = fs.List(folder);
  if (!names.ok() && names.status().kind() == StatusKind::kNotFound) return units;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    const std::filesystem::path path(name);
    const std::string kind = path.extension().string();
    if ((kind == ".service" || kind == ".timer") && IsOfChain(path.stem().string(), policy))
      units.push_back(name);
  }
  return units;
}

// A timer needs the user's manager.
Status CheckManager() {
  const Result<ChildOutcome> outcome = RunChild({"systemctl", "--user", "show-environment"});
  if (!outcome.ok()) return outcome.status();
  if (outcome->exit == 0) return OkStatus();
  return NotFound("there is no systemd of this user here (log in again, or use --cron or --slurm): {}",
                  outcome->err);
}

Status RemoveUnits(const std::string& folder, const std::vector<std::string>& units, SchedulePlan& plan) {
  for (const std::string& unit : units)
    if (unit.ends_with(".timer"))
      plan.steps.push_back(CommandStep("disable", "disabled", unit, Systemctl({"disable", "--now", unit})));
  for (const std::string& unit : units) {
    const std::string path = JoinPath(folder, unit);
    CAIRN_RETURN_IF_ERROR(IsThereAndOurs(path).status());
    plan.steps.push_back(RemoveStep(path));
  }
  if (!units.empty())
    plan.steps.push_back(CommandStep("reload", "reloaded", "systemd's units", Systemctl({"daemon-reload"})));
  return OkStatus();
}

// Without lingering the user's timers stop when the last session ends.
ScheduleStep LingerStep() {
  return Step(
      "enable", "checked", "lingering (timers of a user who has not logged in)", []() -> Result<std::string> {
        const auto shown = RunChild({"loginctl", "show-user", std::to_string(::getuid()), "-p", "Linger"});
        if (shown.ok() && shown->exit == 0 && shown->out == "Linger=yes\n") return std::string("on");
        const auto enabled = RunChild({"loginctl", "--no-ask-password", "enable-linger"});
        if (enabled.ok() && enabled->exit == 0) return std::string("now on");
        return fmt::format(
            "OFF: the timer stops when you log out; ask an administrator for 'loginctl enable-linger {}'",
            ::getuid());
      });
}

Result<SchedulePlan> InstallSystemd(const ScheduleOptions& o) {
  SchedulePlan plan;
  CAIRN_RETURN_IF_ERROR(CheckManager());
  CAIRN_ASSIGN_OR_RETURN(const std::string folder, UnitFolder());
  CAIRN_ASSIGN_OR_RETURN(std::vector<std::string> older, UnitsOfChain(folder, o.policy));
  const std::string service = ChainName(o) + ".service", timer = ChainName(o) + ".timer";
  std::erase(older, service);
  std::erase(older, timer);
  CAIRN_RETURN_IF_ERROR(RemoveUnits(folder, older, plan));  // of another label
  CAIRN_ASSIGN_OR_RETURN(ScheduleStep write, WriteStep(JoinPath(folder, service), SystemdService(o)));
  plan.steps.push_back(std::move(write));
  CAIRN_ASSIGN_OR_RETURN(ScheduleStep write_timer, WriteStep(JoinPath(folder, timer), SystemdTimer(o)));
  plan.steps.push_back(std::move(write_timer));
  plan.steps.push_back(CommandStep("reload", "reloaded", "systemd's units", Systemctl({"daemon-reload"})));
  plan.steps.push_back(CommandStep("enable", "enabled", timer, Systemctl({"enable", timer})));
  plan.steps.push_back(CommandStep("start", "started", timer, Systemctl({"restart", timer})));
  plan.steps.push_back(LingerStep());
  return plan;
}

Result<SchedulePlan> UninstallSystemd(const ScheduleOptions& o) {
  SchedulePlan plan;
  CAIRN_ASSIGN_OR_RETURN(const std::string folder, UnitFolder());
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> units, UnitsOfChain(folder, o.policy));
  if (units.empty()) return plan;
  CAIRN_RETURN_IF_ERROR(CheckManager());
  CAIRN_RETURN_IF_ERROR(RemoveUnits(folder, units, plan));
  plan.notes.push_back("a run that has started will finish, and lingering stays as it is");
  return plan;
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

// The step reads the crontab again: somebody may have edited it since the plan.
ScheduleStep CrontabStep(const std::string& would, const std::string& done, const std::string& what,
                         const std::string& policy, const std::string& line) {
  return PlainStep(would, done, what, [policy, line]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const std::string crontab, ReadCrontab());
    std::string next = CrontabWithout(crontab, policy);
    if (!next.empty() && !next.ends_with('\n')) next += '\n';
    next += line;
    return next == crontab ? OkStatus() : WriteCrontab(next);
  });
}

Result<SchedulePlan> InstallCron(const ScheduleOptions& o) {
  SchedulePlan plan;
  CAIRN_RETURN_IF_ERROR(ReadCrontab().status());
  const std::string line = CrontabLine(o);
  plan.steps.push_back(
      CrontabStep("put", "put", "into the crontab: " + line.substr(0, line.size() - 1), o.policy, line));
  return plan;
}

Result<SchedulePlan> UninstallCron(const ScheduleOptions& o) {
  SchedulePlan plan;
  CAIRN_ASSIGN_OR_RETURN(const std::string crontab, ReadCrontab());
  if (CrontabWithout(crontab, o.policy) != crontab)
    plan.steps.push_back(
        CrontabStep("remove", "removed", "the line of " + ChainName(o) + " from the crontab", o.policy, ""));
  return plan;
}

}  // namespace

Result<SchedulePlan> PlanInstall(Scheduler scheduler, const ScheduleOptions& o) {
  CAIRN_RETURN_IF_ERROR(CheckLog(o));
  if (scheduler == Scheduler::kSlurm) return InstallSlurm(o);
  return scheduler == Scheduler::kSystemd ? InstallSystemd(o) : InstallCron(o);
}

Result<SchedulePlan> PlanUninstall(Scheduler scheduler, const ScheduleOptions& o) {
  if (scheduler == Scheduler::kSlurm) return UninstallSlurm(o);
  return scheduler == Scheduler::kSystemd ? UninstallSystemd(o) : UninstallCron(o);
}

}  // namespace cairn
