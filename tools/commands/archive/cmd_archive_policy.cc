// `run --policy`. PolicyRun (policy_run.h) does the work; its events are printed here.

#include <cmath>
#include <cstdio>
#include <memory>

#include "tools/archive/policy/policy_report.h"
#include "tools/archive/policy/purge_clock.h"
#include "tools/archive/schedule/team.h"
#include "tools/check/removal_proof.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/commands/archive/archive_verbs.h"

namespace cairn {
namespace {

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

// Prints this process's share while others are still working.
void PrintShare(const RunReport& report, bool json) {
  if (json)
    PrintJson({{"stored_members", report.stored_members},
               {"stored_bytes", report.stored_bytes},
               {"failures", report.failures},
               {"reported_by", "the process that ends last"}});
  else
    fmt::print("stored {}, {} of sources; other processes are still working; the last one reports\n",
               Counted(report.stored_members, "member"), HumanBytesOrDash(report.stored_bytes));
}

void CallFailureHook(const Policy& policy, const RunReport& report) {
  if (const Status hook = RunFailureHook(policy, report); !hook.ok()) PrintProblem(hook.message());
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
  CAIRN_ASSIGN_OR_RETURN(const RankTeam team, ArchiveTeam());
  if (dry_run)
    return team.leads() ? RunArchivePlan({.policy = policy_path, .json = json}) : Result<int>(kExitDone);
  CAIRN_ASSIGN_OR_RETURN(const Policy policy, ReadPolicy(policy_path));
  RemovalProofs proofs(fs, {}, /*show_progress=*/!json);
  const auto find_proof = [&](const std::string& source) { return proofs.For(source); };
  PolicyRun run(fs, policy, find_proof, PrintedEvents(json));
  if (const Status status = run.Run(team); !status.ok()) {
    if (run.reported()) CallFailureHook(policy, run.report());
    return status;
  }
  if (run.reported()) return PrintReport(fs, policy, run.report(), json);
  PrintShare(run.report(), json);
  return kExitDone;  // mpirun ends all others if one fails; the last one reports every failure
}

}  // namespace cairn
