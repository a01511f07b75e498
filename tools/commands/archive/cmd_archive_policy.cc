// The verbs plan and prune, and `run --policy`. PolicyRun (policy_run.h) does the work; here its events are
// printed, and its report goes to those who watch the job.

#include "tools/commands/archive/cmd_archive_policy.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "tools/archive/policy/policy_plan.h"
#include "tools/archive/policy/policy_report.h"
#include "tools/archive/policy/prune.h"
#include "tools/archive/schedule/team.h"
#include "tools/archive/store/claims.h"
#include "tools/check/verified_successor.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/cli/text_table.h"
#include "tools/commands/archive/cmd_archive_bundle.h"
#include "tools/commands/archive/cmd_archive_run.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct PolicyOptions {
  std::string policy;
  std::vector<std::string> adopt;  // of prune
  bool dry_run = false;
  bool json = false;
};

std::string DaysText(double days) { return days <= 0 ? "overdue" : fmt::format("{:.1f} d", days); }

std::string ActionText(const PlanEntry& e) {
  if (e.trouble) return "cannot";
  std::string text = e.store_full && e.store_weights ? "store full, fp16"
                     : e.store_full                  ? (e.source.native ? "store full" : "store files")
                     : e.store_weights               ? "store fp16"
                                                     : "-";
  if (e.delete_source) text = text == "-" ? "delete source" : text + ", delete source";
  return text;
}

ordered_json ToJson(const PlanEntry& e) {
  return {{"run", e.run},
          {"run_id", e.id},
          {"step", e.step},
          {"member", e.title},
          {"source", e.source.path},
          {"store_full", e.store_full},
          {"store_weights", e.store_weights},
          {"delete_source", e.delete_source},
          {"why", e.why},
          {"bytes", e.bytes},
          {"inodes", e.inodes},
          {"purge_days", e.purge_days},
          {"finish_days", e.finish_days},
          {"late", e.late},
          {"trouble", e.trouble}};
}

void PrintPlanJson(const Plan& plan) {
  ordered_json entries = ordered_json::array();
  for (const PlanEntry& e : plan.entries) entries.push_back(ToJson(e));
  PrintJson({{"entries", entries},
             {"bytes", plan.bytes},
             {"inodes", plan.inodes},
             {"bandwidth", plan.bandwidth},
             {"bundling", BundlingJson(plan.bundling)},
             {"failures", plan.failures},
             {"notes", plan.notes},
             {"caveats", plan.caveats}});
}

void PrintPlan(const Plan& plan, const Policy& policy) {
  std::vector<std::string> columns{"member", "do", "purge in", "proven in", "size", "why"};
  if (plan.ambiguous) columns.emplace_back("source");
  TextTable table(columns);
  for (const PlanEntry& e : plan.entries) {
    std::vector<std::string> row{e.title,
                                 ActionText(e),
                                 DaysText(e.purge_days),
                                 !e.stores()         ? "-"
                                 : e.finish_days < 0 ? "?"
                                                     : HumanSeconds(e.finish_days * 86400),
                                 HumanBytesOrDash(e.bytes),
                                 e.why};
    if (plan.ambiguous) row.push_back(e.source.path);
    table.Add(row);
  }
  table.Print();
  fmt::print("to store: {} in {} files", HumanBytesOrDash(plan.bytes), plan.inodes);
  if (plan.bandwidth > 0)
    fmt::print(", {} at {}/s", HumanSeconds(static_cast<double>(plan.bytes) / plan.bandwidth),
               HumanBytes(plan.bandwidth));
  else if (plan.bytes > 0)
    fmt::print("; no bandwidth is known, so no deadline but the purge itself was checked");
  fmt::print("\n");
  PrintBundling(plan.bundling, policy);
  for (const auto* notes : {&plan.notes, &plan.caveats})
    for (const std::string& note : *notes) fmt::print("note: {}\n", note);
}

Result<int> RunArchivePlan(const PolicyOptions& options) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_ASSIGN_OR_RETURN(const Policy policy, ReadPolicy(options.policy));
  const RunReport last = ReadLastReport(fs, policy);
  CAIRN_ASSIGN_OR_RETURN(const Plan plan, MakePlan(fs, policy, last.bytes_per_second, std::time(nullptr)));
  options.json ? PrintPlanJson(plan) : PrintPlan(plan, policy);
  for (const std::string& failure : plan.failures) PrintProblem(failure);
  return plan.failures.empty() ? kExitDone : kExitCheckFailed;
}

// Prints what a run does, unless `quiet`; problems always.
PolicyEvents PrintedEvents(bool quiet) {
  PolicyEvents events = PrintedBundling(quiet);
  events.problem = [](const std::string& line) { PrintProblem(line); };
  events.note = [](const std::string& line) { PrintProblem("note: " + line); };
  const auto progress = std::make_shared<std::optional<Progress>>();
  events.archiving = [=](const PlanEntry& entry) -> ByteProgress {
    progress->emplace("archiving " + entry.title, 2 * entry.bytes, !quiet);
    return [=](uint64_t done) { (*progress)->Update(done); };
  };
  events.archived = [=] { progress->reset(); };
  if (quiet) return events;
  events.stored = [](const PlanEntry& entry, const ArchiveOutcome& outcome) {
    fmt::print("stored {} ({}) as {}: {}, read back and verified, {}\n", entry.title,
               Name(outcome.record.form), FilesText(outcome.record),
               HumanBytesOrDash(outcome.record.tar_bytes), HumanSeconds(outcome.seconds));
    std::fflush(stdout);
  };
  events.source_removed = [](const std::string& source) {
    fmt::print("removed its source {}\n", source);
    std::fflush(stdout);
  };
  events.pruned = [](const PruneEntry& entry) {
    fmt::print("removed {} from the store: {}\n", entry.tar, entry.why);
  };
  return events;
}

Result<int> RunPrune(const PolicyOptions& options) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_ASSIGN_OR_RETURN(const Policy policy, ReadPolicy(options.policy));
  const Store store(fs, policy.store);
  std::optional<FileLock> lock;
  if (!options.dry_run) {
    CAIRN_ASSIGN_OR_RETURN(FileLock taken, LockStore(store));
    lock.emplace(std::move(taken));
    CAIRN_RETURN_IF_ERROR(CleanAndReport(store));
  }
  if (!options.dry_run && !options.adopt.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const size_t adopted, AdoptClaims(store, options.adopt, policy.labels().front()));
    if (!options.json) fmt::print("took over {} members\n", adopted);
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<PruneEntry> entries,
                         options.dry_run ? PlanPrune(fs, policy, options.adopt) : PlanPrune(fs, policy));
  ordered_json list = ordered_json::array();
  TextTable table({"member", "do", "size", "why", "tar"});
  const auto named_twice = [](const PruneEntry& e) { return e.title.find('~') != std::string::npos; };
  uint64_t freed = 0;
  for (const PruneEntry& e : entries) {
    if (e.remove) freed += e.bytes;
    table.Add({e.title, e.remove ? "remove" : "keep", HumanBytesOrDash(e.bytes), e.why,
               named_twice(e) ? fmt::format("{} of {}", e.file, e.source) : e.file});
    list.push_back({{"run", e.run},
                    {"step", e.step},
                    {"member", e.title},
                    {"source", e.source},
                    {"tar", e.tar},
                    {"file", e.file},
                    {"remove", e.remove},
                    {"drop_claim", e.drop_claim},
                    {"bytes", e.bytes},
                    {"why", e.why}});
  }
  options.json ? PrintJson(list) : table.Print();
  if (!options.dry_run) CAIRN_RETURN_IF_ERROR(RemovePruned(fs, policy, entries));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> orphans, OrphanedClaims(fs, policy));
  for (const std::string& line : orphans)
    if (!options.json) fmt::print("note: {}\n", line);
  if (!options.json) fmt::print("{} {}\n", options.dry_run ? "would free" : "freed", HumanBytesOrDash(freed));
  return kExitDone;
}

// Prints what this process stored while others are still at work.
Result<int> PrintShare(const RunReport& report, const Status& status, bool json) {
  CAIRN_RETURN_IF_ERROR(status);
  if (json)
    PrintJson({{"stored_members", report.stored_members},
               {"stored_bytes", report.stored_bytes},
               {"failures", report.failures},
               {"reported_by", "the process that ends last"}});
  else
    fmt::print("stored {}, {} of sources; others are still at work; the last one reports\n",
               Counted(report.stored_members, "member"), HumanBytesOrDash(report.stored_bytes));
  return kExitDone;  // mpirun ends all others if one fails; the last one reports every failure
}

void CallFailureHook(const Policy& policy, const RunReport& report) {
  if (const int hook = RunFailureHook(policy, report); hook != 0)
    PrintProblem(fmt::format("on_failure ended with status {}", hook));
}

// Reports a run that could not begin or whose lock failed. The first process reports for its launch. Returns
// `why`.
Status ReportStopped(FileSystem& fs, const Policy& policy, const RankTeam& team, PolicyRun& run,
                     const Status& why) {
  if (!team.leads()) return why;
  const RunReport& report = run.Finish(why);
  if (const Status written = WriteReport(fs, policy, report); !written.ok()) PrintProblem(written.message());
  CallFailureHook(policy, report);
  return why;
}

Result<int> PrintReport(FileSystem& fs, const Policy& policy, const RunReport& report, bool json) {
  for (const std::string& failure : report.failures) PrintProblem(failure);
  CallFailureHook(policy, report);
  if (json) {
    CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(fs, policy.status, 16 << 20));
    fmt::print("{}", text);
  } else {
    fmt::print(
        "stored {}, {} of sources; {} waiting (first purge: {})\n", Counted(report.stored_members, "member"),
        HumanBytesOrDash(report.stored_bytes), report.waiting,
        std::isfinite(report.nearest_purge_days) ? "in " + DaysText(report.nearest_purge_days) : "none");
  }
  return report.ok() ? kExitDone : kExitCheckFailed;
}

}  // namespace

Result<int> RunByPolicy(const std::string& policy_path, bool dry_run, bool json) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_ASSIGN_OR_RETURN(const RankTeam team,
                         ArchiveTeam([](const char* name) { return std::getenv(name); }));
  if (dry_run)
    return team.leads() ? RunArchivePlan({.policy = policy_path, .dry_run = true, .json = json})
                        : Result<int>(kExitDone);
  CAIRN_ASSIGN_OR_RETURN(const Policy policy, ReadPolicy(policy_path));
  RunReport report;
  {
    const auto successor = [&](const std::string& step) { return FindVerifiedSuccessor(fs, step, !json); };
    PolicyRun run(fs, policy, successor, PrintedEvents(json));
    Result<TeamStore> store = run.Join(team);
    if (!store.ok()) return ReportStopped(fs, policy, team, run, store.status());
    Status status = run.StoreShare(*store);
    const Result<bool> last = store->IsLast();
    if (!last.ok()) return ReportStopped(fs, policy, team, run, last.status());
    if (!*last) return PrintShare(run.Finish(), status, json);
    if (const Status end = run.Conclude(*store); status.ok()) status = end;
    report = run.Finish(status);
    if (const Status written = WriteReport(fs, policy, report); !written.ok()) {
      PrintProblem(written.message());
      report.failures.push_back(written.message());
    }
  }
  return PrintReport(fs, policy, report, json);
}

void AddArchivePolicyCommands(CLI::App& archive, Verb& verb) {
  const auto options = std::make_shared<PolicyOptions>();
  const auto add = [&](const char* name, const char* description, Result<int> (*run)(const PolicyOptions&)) {
    CLI::App* command = archive.add_subcommand(name, description);
    command->add_option("POLICY", options->policy, "the policy, a TOML file")->required();
    command->add_flag("--json", options->json, "print facts as JSON");
    command->callback([options, &verb, run] { verb = [options, run] { return run(*options); }; });
    return command;
  };
  add("plan", "show what a policy would store now, why, and whether there is time for it", RunArchivePlan)
      ->footer("Relative paths in a policy start at the directory of its file, ~/ at $HOME. Its keys:\n\n" +
               PolicyKeysText() + "\n" +
               HelpFooter(
                   "cairn archive plan archive.toml",
                   "a deadline or a quota cannot be met, a step to store is damaged, or something that the\n"
                   "policy names is missing or cannot be read"));
  CLI::App* prune = add("prune", "remove members that no class of a policy keeps", RunPrune);
  prune
      ->add_option("--adopt", options->adopt,
                   "take over another claim: a policy's tag, or \"policy:PATH\" of a policy that is gone, "
                   "\"by hand\", or \"unknown\" for members of older versions; repeatable")
      ->allow_extra_args(false)
      ->option_text("CLAIM");
  prune->add_flag("--dry-run", options->dry_run, "show what would be removed and why; remove nothing");
  prune->footer(
      "A member is removed only if this policy alone claims it. What another policy or a person stored or "
      "claims stays.\n"
      "Whatever the classes say, these stay: trees, runs that are not on scratch, members that are not\n"
      "verified, the newest healthy copy of each run, and a full copy whose weights a class keeps and that "
      "are stored\n"
      "nowhere else. Runs are known by their identity, not by their name. A bundle is removed only if no "
      "class keeps\n"
      "any of its members.\n\n" +
      HelpFooter("cairn archive prune archive.toml --dry-run"));
}

}  // namespace cairn
