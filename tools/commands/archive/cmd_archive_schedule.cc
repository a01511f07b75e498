// Arguments become absolute paths. The policy is read first, because a schedule of a broken policy is
// useless; only an uninstall must work without it. Then the text is printed, or changes (schedule_install.h)
// are shown or made.

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ckpt/base/canonical_path.h"
#include "tools/archive/policy/policy.h"
#include "tools/archive/schedule/schedule_install.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/commands/archive/archive_verbs.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct ScheduleArguments {
  std::string policy;
  bool slurm = false, systemd = false, cron = false;
  bool install = false, uninstall = false, dry_run = false, json = false;
  ScheduleOptions options;

  Scheduler scheduler() const {
    return slurm ? Scheduler::kSlurm : systemd ? Scheduler::kSystemd : Scheduler::kCron;
  }
};

std::string Absolute(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

// A scheduler starts in another directory: every path is absolute.
Result<ScheduleOptions> Complete(const ScheduleArguments& arguments) {
  ScheduleOptions o = arguments.options;
  o.policy = CanonicalPath(arguments.policy);
  o.cairn = o.cairn.empty() ? CanonicalPath("/proc/self/exe") : Absolute(o.cairn);
  o.script = o.script.empty() ? o.policy + ".sbatch" : Absolute(o.script);
  o.log = o.log.empty() ? o.policy + ".log" : Absolute(o.log);
  if (const char* path = std::getenv("PATH")) o.search_path = path;
  if (arguments.uninstall) return o;
  // A schedule is useless without a valid policy and a program.
  CAIRN_ASSIGN_OR_RETURN(const Policy policy, ReadPolicy(arguments.policy));
  o.tag = policy.tag;
  if (::access(o.cairn.c_str(), X_OK) != 0)
    return InvalidArgument("{} is not a program that can be started; name one with --program", o.cairn);
  CAIRN_RETURN_IF_ERROR(CheckSchedule(o, arguments.scheduler()));
  return o;
}

void PrintTexts(const ScheduleOptions& o, Scheduler scheduler) {
  if (scheduler == Scheduler::kSlurm) fmt::print("{}", SlurmScript(o));
  if (scheduler == Scheduler::kSystemd)
    fmt::print("# {0}.service\n{1}\n# {0}.timer\n{2}", ChainName(o), SystemdService(o), SystemdTimer(o));
  if (scheduler == Scheduler::kCron) fmt::print("{}", CrontabLine(o));
}

Result<int> RunSchedule(const ScheduleArguments& arguments) {
  CAIRN_ASSIGN_OR_RETURN(const ScheduleOptions o, Complete(arguments));
  const Scheduler scheduler = arguments.scheduler();
  const bool acts = arguments.install || arguments.uninstall;
  if (!acts && (arguments.dry_run || arguments.json))
    return InvalidArgument("--dry-run and --json are only for --install and --uninstall");
  if (!acts) {
    PrintTexts(o, scheduler);
    return kExitDone;
  }
  ordered_json facts = {{"name", ChainName(o)},           {"policy", o.policy},
                        {"scheduler", Name(scheduler)},   {"dry_run", arguments.dry_run},
                        {"steps", ordered_json::array()}, {"notes", ordered_json::array()}};
  // Each change is printed as it is made, so that a failure half-way shows those before it.
  const auto changed = [&](const ScheduleChange& change) {
    facts["steps"].push_back(
        {{"step", change.would}, {"done", !arguments.dry_run}, {"result", change.result}});
    if (!arguments.json)
      fmt::print("{}{}{}\n", arguments.dry_run ? "would " + change.would : change.done,
                 change.result.empty() ? "" : ": ", change.result);
  };
  const auto note = [&](const std::string& line) { facts["notes"].push_back(line); };
  CAIRN_RETURN_IF_ERROR((arguments.install ? InstallSchedule : UninstallSchedule)(
      scheduler, o, {FileSystem::Posix(), arguments.dry_run, changed, note}));
  if (arguments.json) {
    PrintJson(facts);
    return kExitDone;
  }
  if (facts["steps"].empty())
    fmt::print("nothing to remove: {} has nothing of {}\n", Name(scheduler), ChainName(o));
  for (const ordered_json& line : facts["notes"]) fmt::print("{}\n", line.get<std::string>());
  return kExitDone;
}

}  // namespace

void AddArchiveSchedule(CLI::App& archive, Verb& verb) {
  const auto [schedule, arguments] = AddVerb(
      archive, verb, "schedule", "print, install or remove the schedule that runs a policy", RunSchedule);
  schedule->add_option("POLICY", arguments->policy, "the policy, a TOML file")->required();
  CLI::Option_group* kind = schedule->add_option_group("scheduler");
  CLI::Option* slurm = kind->add_flag("--slurm", arguments->slurm, "a job that submits its successor");
  kind->add_flag("--systemd", arguments->systemd, "a service and its timer, of the user");
  kind->add_flag("--cron", arguments->cron, "a line of the crontab");
  kind->require_option(1);
  CLI::Option* install = schedule->add_flag(
      "--install", arguments->install,
      "submit the job (it runs at once), enable the timer or put the line into the crontab, and replace what "
      "this policy has installed; without --install and --uninstall the text is printed");
  schedule
      ->add_flag("--uninstall", arguments->uninstall,
                 "remove only what this policy has installed; a run that has started finishes")
      ->excludes(install);
  schedule->add_flag("--dry-run", arguments->dry_run, "show what --install or --uninstall would do");
  schedule->add_flag("--json", arguments->json, "print what --install or --uninstall did, as JSON");
  ScheduleOptions& o = arguments->options;
  schedule
      ->add_option("--every-hours", o.every_hours,
                   "how often (default 24); cron and systemd: 1, 2, 3, 4, 6, 8, 12, 24 or 168")
      ->check(CLI::Range(1, 24 * 7))
      ->option_text("N");
  schedule->add_option("--log", o.log, "file to append the output of a run to (default POLICY.log)")
      ->type_name("FILE");
  schedule
      ->add_option("--program", o.cairn,
                   "the program to run (default: this one), for example a link that outlives an upgrade")
      ->type_name("FILE");
  schedule->add_option("--script", o.script, "where the Slurm script lies (default POLICY.sbatch)")
      ->type_name("FILE");
  schedule->add_option("--partition", o.partition, "of the Slurm job")->type_name("NAME");
  schedule->add_option("--account", o.account, "of the Slurm job")->type_name("NAME");
  schedule->add_option("--time", o.time_limit, "limit of the Slurm job (default 08:00:00)")
      ->type_name("TIME");
  schedule->add_option("--array", o.array, "tasks of the Slurm job, which share the sources of a run")
      ->needs(slurm)
      ->check(CLI::Range(2, 1000))
      ->option_text("N");
  schedule->footer(
      "Each policy has its own chain, cairn-archive-LABEL-ID: the job's name, the units' or the end\n"
      "of the crontab's line. LABEL is the policy file's name, ID is made from its path. Under Slurm the\n"
      "chain continues after a failure, a time limit, a requeue and scancel of a run; scancel of the\n"
      "waiting job ends it, as --uninstall does. To run a policy now: cairn archive run --policy POLICY,\n"
      "or sbatch of the script.\n\n" +
      HelpFooter("cairn archive schedule archive.toml --slurm --install --partition io\n"
                 "  cairn archive schedule archive.toml --slurm --uninstall"));
}

}  // namespace cairn
