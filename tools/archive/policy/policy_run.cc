// A plan lists what to store, the most urgent first. Each source that this process takes is stored in the
// forms that classes keep; the source is removed last, and only if every form succeeded. Quotas are checked
// before a form is written. Processes write at the same time if all of them together have room, and otherwise
// one after the other.
//
// The report is this process's until Conclude(), which replaces it by the sum of all processes.
#include "tools/archive/policy/policy_run.h"

#include <algorithm>
#include <ctime>

#include "ckpt/step/partial_dir.h"
#include "tools/archive/policy/store_usage.h"
#include "tools/archive/store/claims.h"
#include "tools/archive/store/ledger.h"
#include "tools/archive/store/leftovers.h"
#include "tools/archive/tar/recall.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {

Result<std::vector<std::string>> MakeBundlesBy(FileSystem& fs, const Policy& policy, bool all,
                                               const PolicyEvents& events) {
  CAIRN_ASSIGN_OR_RETURN(const std::set<std::string> left_out, FilesNotToBundle(fs, policy, all));
  return MakeBundles({fs, policy.store},
                     {.sizes = policy.bundle,
                      .parity = policy.parity,
                      .all = all,
                      .pass_over = [&](const std::string& file) { return left_out.contains(file); },
                      .progress = events.bundling,
                      .made = events.bundled});
}

PolicyRun::PolicyRun(FileSystem& fs, const Policy& policy, ProofFinder find_proof, PolicyEvents events)
    : fs_(fs),
      policy_(policy),
      find_proof_(std::move(find_proof)),
      events_(std::move(events)),
      store_(fs, policy.store),
      claim_(policy.labels().front()),
      last_(ReadLastReport(fs, policy)) {
  report_.started_unix_seconds = std::time(nullptr);
}

Status PolicyRun::Run(const RankTeam& team) {
  const auto stopped = [&](const Status& why) {
    if (team.leads()) Report(why);
    return why;
  };
  Result<TeamStore> store = Join(team);
  if (!store.ok()) return stopped(store.status());
  Status status = StoreShare(*store);
  const Result<bool> last = store->IsLast();
  if (!last.ok()) return stopped(last.status());
  if (!*last) return status;
  if (const Status end = Conclude(*store); status.ok()) status = end;
  Report(status);
  return OkStatus();
}

Result<TeamStore> PolicyRun::Join(const RankTeam& team) {
  CAIRN_RETURN_IF_ERROR(MakeOutputDir(fs_, policy_.store));
  return TeamStore::Join(store_, team, [this] { return Prepare(); });
}

// Before any process of a team stores something.
Status PolicyRun::Prepare() {
  CAIRN_RETURN_IF_ERROR(PrepareStore(store_, events_.note));
  CAIRN_ASSIGN_OR_RETURN(const Plan plan, PlanNow());
  CAIRN_RETURN_IF_ERROR(AddClaim(store_, plan.unclaimed, claim_));
  NoteInLedger(plan);
  return OkStatus();
}

Status PolicyRun::StoreShare(TeamStore& team) {
  CAIRN_ASSIGN_OR_RETURN(const Plan plan, PlanNow());
  for (const PlanEntry& entry : plan.entries)
    for (const StoreUsage& one : {entry.full_at_most, entry.weights_at_most})
      largest_ = {std::max(largest_.bytes, one.bytes), std::max(largest_.files, one.files)};
  for (const size_t i : team.Order(plan.entries.size())) {
    const PlanEntry& entry = plan.entries[i];
    if (!entry.stores() && !entry.delete_source) continue;
    const auto store = [&] { return StoreEntry(team, entry); };
    CAIRN_RETURN_IF_ERROR(team.Share(entry.source.path, store).status());
  }
  return OkStatus();
}

Status PolicyRun::Conclude(TeamStore& team) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ShareResult> shares, team.Collect());
  if (!shares.empty()) AddShares(shares);
  std::vector<PruneEntry> pruned;
  if (policy_.delete_stored) {
    CAIRN_ASSIGN_OR_RETURN(pruned, Prune(fs_, policy_));
  }
  for (const PruneEntry& entry : pruned)
    if (entry.remove) events_.pruned(entry);
  if (policy_.bundle.target > 0) {
    CAIRN_ASSIGN_OR_RETURN(const auto problems, MakeBundlesBy(fs_, policy_, /*all=*/false, events_));
    Add({.failures = problems});
  }
  CAIRN_ASSIGN_OR_RETURN(const Plan after, PlanNow());
  NoteInLedger(after);
  for (const std::string& failure : after.failures)
    if (std::ranges::find(report_.failures, failure) == report_.failures.end())
      report_.failures.push_back(failure);
  for (const std::string& note : after.notes) events_.note(note);
  report_.nearest_purge_days = after.nearest_purge_days;
  for (const PlanEntry& entry : after.entries) report_.waiting += entry.stores() || entry.trouble;
  return OkStatus();
}

// Completes the report and writes it. `status`: of the error that ended the run early.
void PolicyRun::Report(const Status& status) {
  if (!status.ok()) report_.failures.push_back(status.message());
  report_.finished_unix_seconds = std::time(nullptr);
  report_.last_success_unix_seconds =
      report_.ok() ? report_.finished_unix_seconds : last_.last_success_unix_seconds;
  report_.bytes_per_second =
      seconds_ > 0 ? static_cast<double>(report_.stored_bytes) / seconds_ : last_.bytes_per_second;
  if (const auto usage = UsageOf(store_); usage.ok()) {
    report_.store_files = usage->files;
    report_.store_bytes = usage->bytes;
  }
  reported_ = true;
  if (const Status written = WriteReport(fs_, policy_, report_); !written.ok()) {
    events_.problem(written.message());
    report_.failures.push_back(written.message());
  }
}

Result<Plan> PolicyRun::PlanNow() {
  return MakePlan(fs_, policy_, last_.bytes_per_second, std::time(nullptr));
}

void PolicyRun::Add(const ShareResult& share) {
  report_.stored_bytes += share.stored_bytes;
  report_.stored_members += share.stored_members;
  report_.failures.insert(report_.failures.end(), share.failures.begin(), share.failures.end());
}

// The report becomes that of all processes.
void PolicyRun::AddShares(const std::vector<ShareResult>& shares) {
  report_.stored_bytes = report_.stored_members = 0;
  report_.failures.clear();
  int64_t first = report_.started_unix_seconds, last = 0;
  for (const ShareResult& share : shares) {
    Add(share);
    first = std::min(first, share.started_unix_seconds);
    last = std::max(last, share.finished_unix_seconds);
  }
  report_.started_unix_seconds = first;
  seconds_ = report_.stored_bytes > 0 ? static_cast<double>(std::max<int64_t>(1, last - first)) : 0;
}

// The form after which the source is removed comes last.
ShareResult PolicyRun::StoreEntry(TeamStore& team, const PlanEntry& entry) {
  ShareResult share;
  const bool goes = entry.delete_source, by_weights = goes && !entry.keeps_full;
  bool good = true;
  if (entry.store_weights) good = StoreForm(team, entry, /*weights=*/true, by_weights, share);
  if (good && (entry.store_full || (goes && entry.keeps_full)))
    good = StoreForm(team, entry, /*weights=*/false, goes, share);
  if (good && !entry.stores() && by_weights)
    StoreForm(team, entry, /*weights=*/true, /*delete_source=*/true, share);
  Add(share);
  return share;
}

// Stores one form of a source, or removes the source of a form that is stored. False after a failure.
bool PolicyRun::StoreForm(TeamStore& team, const PlanEntry& entry, bool weights, bool delete_source,
                          ShareResult& share) {
  bool on_tape = false;
  const auto claim = [&](const std::string& tar) -> Status {
    CAIRN_RETURN_IF_ERROR(team.Alone([&] { return AddClaim(store_, {tar}, claim_); }));
    if (!delete_source) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const ArchiveRecord record, ReadRecord({store_, tar}));
    const std::vector<std::string> files = FilesOf(store_.Place(record));
    on_tape = policy_.recall.recall.empty() && !CheckOnDisk(store_.fs(), files).ok();
    return on_tape ? OkStatus() : Recall(store_.fs(), files, policy_.recall).status();
  };
  const auto outcome = ArchiveWithinQuota(team, entry,
                                          {.source = entry.source,
                                           .weights = weights,
                                           .delete_source = delete_source,
                                           .stored = claim,
                                           .find_proof = find_proof_});
  if (on_tape) {  // not a failure: everything that was asked for is stored
    events_.note(
        fmt::format("{}: its copy is on tape; its source is kept, as the policy has no [recall] to prove it",
                    entry.title));
    return false;
  }
  const bool rightly = outcome.ok() && outcome->newest && entry.source.of_run;
  const Status failure = rightly ? OkStatus() : outcome.ok() ? outcome->kept : outcome.status();
  if (!failure.ok()) {
    events_.problem(failure.message());
    share.failures.push_back(fmt::format("{}: {}", entry.title, failure.message()));
  }
  if (!outcome.ok()) return false;
  if (!outcome->passed_over.empty()) {
    events_.note("passed over: " + outcome->passed_over);
    return false;
  }
  if (outcome->stored) {
    share.stored_bytes += weights ? entry.weight_bytes : entry.bytes - entry.weight_bytes;
    ++share.stored_members;
    seconds_ += outcome->seconds;
    events_.stored(entry, *outcome);
  }
  if (outcome->deleted) events_.source_removed(outcome->removed);
  return failure.ok();
}

Result<ArchiveOutcome> PolicyRun::ArchiveWithinQuota(TeamStore& team, const PlanEntry& entry,
                                                     const ArchiveRequest& request) {
  const StoreUsage& more = request.weights ? entry.weights_at_most : entry.full_at_most;
  const bool stores = request.weights ? entry.store_weights : entry.store_full;
  const bool limited = stores && (policy_.quota_bytes > 0 || policy_.quota_inodes > 0);
  Result<ArchiveOutcome> outcome{ArchiveOutcome{}};
  const auto work = [&]() -> Status {
    if (limited) {
      CAIRN_ASSIGN_OR_RETURN(const StoreUsage there, UsageOf(store_));
      CAIRN_RETURN_IF_ERROR(CheckQuota(policy_, there, more).WithContext("not stored"));
    }
    outcome = Archive(store_, request,
                      {.pack = policy_.pack,
                       .parity = policy_.parity,
                       .max_tar_bytes = policy_.bundle.most,
                       .claims = {claim_}},
                      events_.archiving(entry));
    events_.archived();
    return outcome.status();
  };
  const auto all_fit = [&] {
    const auto there = UsageOf(store_);
    return there.ok() &&
           CheckQuota(policy_, *there, {team.size() * largest_.bytes, team.size() * largest_.files}).ok();
  };
  CAIRN_RETURN_IF_ERROR(limited ? team.TakingRoom(all_fit, work) : work());
  return outcome;
}

// Enters the sources that are not stored. A ledger that cannot be opened does not stop the run.
void PolicyRun::NoteInLedger(const Plan& plan) {
  Result<Ledger> ledger = Ledger::Open(store_);
  if (!ledger.ok()) {
    events_.problem(ledger.status().message());
    return;
  }
  for (const PlanEntry& e : plan.entries)
    (void)(e.stores() ? ledger->NoteSource({e.source.path, e.run, e.step, e.bytes})
                      : ledger->ForgetSource(e.source.path));
}

}  // namespace cairn
