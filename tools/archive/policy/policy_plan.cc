// For each step of each run and for each tree, the plan notes which forms the classes keep, whether the store
// has them by content, and when the purge takes the source. Entries are then sorted by that time and added up
// at the bandwidth. An entry is late if the sum up to it ends after its purge less the margin. A run, step or
// tree that cannot be read becomes a line of the plan; the others are still planned. Upper bounds for a quota
// come from sizes before packing.

#include "tools/archive/policy/policy_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>

#include "tools/archive/policy/prune.h"
#include "tools/archive/policy/run_timeline.h"
#include "tools/archive/policy/store_usage.h"
#include "tools/archive/store/claims.h"
#include "tools/archive/store/ledger.h"
#include "tools/archive/store/member_title.h"
#include "tools/archive/store/tree.h"
#include "tools/archive/tar/recall.h"
#include "tools/archive/tar/tar_parity.h"
#include "tools/archive/tar/tar_writer.h"
#include "tools/place/place.h"
#include "tools/place/step_files.h"

namespace cairn {
namespace {

constexpr double kDaySeconds = 86400;
// Bounds for a quota.
constexpr uint64_t kTarEndBytes = 16 << 10, kSidecarBytes = 4 << 10, kSidecarBytesAFile = 512;
constexpr uint64_t kStagedFiles = 8;  // of a step with weights alone, directories included

class Planner {
 public:
  Planner(FileSystem& fs, const Policy& policy, int64_t now) : fs_(fs), policy_(policy), now_(now) {}

  Status ReadStore() {
    const Store store(fs_, policy_.store);
    if (!store.IsThere()) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(members_, ListSound(store));
    CAIRN_ASSIGN_OR_RETURN(usage_, UsageOf(store));
    return OkStatus();
  }

  void AddRuns() {
    PolicyRuns runs = LookAtRuns(fs_, policy_, members_);
    plan_.failures = std::move(runs.failures);
    plan_.notes = std::move(runs.notes);
    for (const ScratchRun& run : runs.runs) AddRun(run);
    for (const Place& run : runs.foreign) AddForeignRun(run);
  }

  void AddTrees() {
    for (const std::string& path : MatchPatterns(policy_.trees, members_, plan_.failures, plan_.notes))
      AddTree(FoundStepAt(fs_, path), "a tree that the policy names", false);
  }

  void AddTree(const FoundStep& source, const std::string& why, bool delete_source) {
    if (const Status status = TryTree(source, why, delete_source); !status.ok())
      plan_.failures.push_back(status.message());
  }

  Status TryTree(const FoundStep& source, const std::string& why, bool delete_source) {
    const std::string& directory = source.path;
    NoteMount(directory);
    CAIRN_ASSIGN_OR_RETURN(const std::vector<TreeFile> files, ListTree(fs_, directory));
    const ArchiveRecord record = NameTree(fs_, directory);
    CAIRN_ASSIGN_OR_RETURN(const auto stored, FindTree(fs_, members_, directory, Links::kRefuse));
    PlanEntry entry{.run = record.name,
                    .id = stored ? stored->run : "",
                    .step = record.step,
                    .source = source,
                    .keeps_full = true,
                    .delete_source = delete_source};
    FileTimes times;
    std::vector<uint64_t> entries;
    for (const TreeFile& file : files) {
      if (file.kind != EntryKind::kFile) continue;
      times.Add(file.info);
      entries.push_back(file.info.bytes);
    }
    entry.purge_days = PurgeDays(times);
    entry.full_at_most = AtMost(entries);
    entry.store_full = !stored;
    if (stored) {
      entry.why = "stored and verified already" + Claim(stored->manifest_digest, Form::kFiles);
    } else {
      entry.why = why;
      entry.bytes = times.bytes;
      entry.inodes = entry.full_at_most.files;
    }
    plan_.entries.push_back(std::move(entry));
    return OkStatus();
  }

  Plan Finish(double measured) && {
    std::ranges::stable_sort(plan_.entries, {},
                             [](const PlanEntry& e) { return std::tuple(!e.stores(), e.purge_days); });
    plan_.bandwidth = policy_.bandwidth > 0 ? policy_.bandwidth : measured;
    plan_.nearest_purge_days = std::numeric_limits<double>::infinity();
    NameEntries();
    for (PlanEntry& entry : plan_.entries) Schedule(entry);
    const Status fits = CheckQuota(policy_, usage_, {plan_.bytes, plan_.inodes});
    if (!fits.ok()) plan_.failures.push_back(fits.message());
    return std::move(plan_);
  }

 private:
  void NoteMount(const std::string& path) {
    const Result<AccessTimes> times = AccessTimesAt(path);
    if (times.ok() && !policy_.purge_by_mtime && !Caveat(*times).empty())
      plan_.caveats.push_back(fmt::format("{}: {}", path, Caveat(*times)));
  }

  double PurgeDays(const FileTimes& times) const {
    return DaysUntilPurge(policy_.purge_by_mtime ? times.first_written : times.first_accessed, now_,
                          static_cast<int>(policy_.purge_days));
  }

  // At most, for a tar of entries of these sizes with its sidecar and parity.
  StoreUsage AtMost(const std::vector<uint64_t>& entries) const {
    uint64_t tar = kTarEndBytes, sidecar = kSidecarBytes;
    for (const uint64_t bytes : entries) {
      tar += TarEntryBytes(bytes);
      sidecar += kSidecarBytesAFile;
    }
    StoreUsage usage{.bytes = tar + sidecar, .files = CountTarPieces(entries, policy_.bundle.most) + 1};
    if (policy_.parity > 0) {
      usage.bytes += ParityFileBytes(tar, policy_.parity).value();
      ++usage.files;
    }
    return usage;
  }

  void NameEntries() {
    MemberTitles titles(members_);
    for (const PlanEntry& e : plan_.entries) titles.Add(e.run, e.id, e.step, !e.source.native);
    std::set<std::string> seen;
    for (PlanEntry& e : plan_.entries) {
      e.title = titles.Of(e.run, e.id, e.step, !e.source.native);
      plan_.ambiguous |= e.title.find('~') != std::string::npos || !seen.insert(e.title).second;
    }
  }

  // Notes stored copies that this policy does not claim yet. Returns the text about other claims.
  std::string Claim(const std::string& digest, Form form) {
    std::string text;
    for (const ArchiveMember& m : members_) {
      if (m.state != MemberState::kVerified || m.form != form || ContentOf(*m.record) != digest) continue;
      std::vector<std::string> others = ClaimsOf(*m.record);
      if (std::erase_if(others, [&](const std::string& c) { return policy_.Claims(c); }) == 0)
        plan_.unclaimed.push_back(m.tar);
      if (!others.empty() && text.empty()) text = fmt::format(", claimed by {}, too", ClaimsText(others));
    }
    return text;
  }

  void AddRun(const ScratchRun& run) {
    NoteMount(run.path);
    const auto wanted = WantedSteps(run, members_, policy_.classes, /*all=*/false);
    for (const ScratchStep& step : run.steps) Add(run, step, wanted.at(*step.step));
    std::vector<TimelineStep> timeline;
    for (const ScratchStep& step : run.steps) timeline.push_back({*step.step, step.tokens, step.saved});
    NoteIfUnasked(run.path, wanted, timeline);
  }

  void NoteIfUnasked(const std::string& run, const std::map<int64_t, WantedForms>& wanted,
                     const std::vector<TimelineStep>& timeline) {
    const bool asked = std::ranges::any_of(wanted, [](const auto& w) { return !w.second.reasons.empty(); });
    if (asked) return;
    if (MayAskLater(timeline, policy_.classes))
      plan_.notes.push_back(fmt::format("{}: no class asks for a step of it yet", run));
    else
      plan_.failures.push_back(fmt::format(
          "{}: no class asks for any of its {} steps, or will for a later one", run, timeline.size()));
  }

  // A run of another system: its finished steps, each as a tree in full, whichever form a class asks for.
  void AddForeignRun(const Place& run) {
    std::map<int64_t, std::vector<FoundStep>> sources;
    std::map<int64_t, TimelineStep> steps;
    std::vector<std::string> unfinished;
    for (const FoundStep& step : run.steps) {
      if (std::string why = WhyPassedOver(fs_, step); !why.empty()) {
        unfinished.push_back("passed over: " + std::move(why));
        continue;
      }
      const auto files = ListStepFiles(fs_, step.path);
      sources[*step.step].push_back(step);
      steps[*step.step] = {.step = *step.step,
                           .saved_unix_seconds = files.ok() ? TimesOf(*files).last_written : 0};
    }
    std::vector<TimelineStep> timeline;
    for (const auto& [number, step] : steps) timeline.push_back(step);
    const auto wanted = SelectSteps(timeline, policy_.classes);
    for (const auto& [number, forms] : wanted)
      for (const FoundStep& source : sources[number])
        if (forms.full || forms.weights)
          AddTree(source,
                  fmt::format("{}{}", fmt::join(forms.reasons, ", "),
                              forms.full ? "" : ", in full: weights are taken only from steps of Cairn"),
                  policy_.delete_source && number != timeline.back().step);
    if (!timeline.empty()) NoteIfUnasked(run.path, wanted, timeline);
    // A training begins its second save when its first is done.
    auto& lines = timeline.empty() && unfinished.size() > 1 ? plan_.failures : plan_.notes;
    lines.insert(lines.end(), unfinished.begin(), unfinished.end());
  }

  void Add(const ScratchRun& run, const ScratchStep& step, const WantedForms& wanted) {
    PlanEntry entry{.run = run.name, .id = run.IdOf(step), .step = *step.step, .source = {.path = step.path}};
    entry.purge_days = PurgeDays(step.times);
    entry.keeps_full = wanted.full;
    if (!step.healthy) {
      entry.why = "not healthy: no class counts it";
    } else if (step.superseded) {
      entry.why = "superseded, the training went back before it: no class counts it";
    } else if (!wanted.full && !wanted.weights) {
      entry.why = "no class asks for it";
    } else if (!step.trouble.empty() && (!wanted.full || HoldsStep(members_, run, step, Form::kFull)) &&
               (!wanted.weights || HoldsStep(members_, run, step, Form::kWeights))) {
      entry.why = "stored and verified; no longer whole on scratch";
    } else if (!step.trouble.empty()) {
      entry.trouble = true;
      entry.why = "required by a class, but cannot be read: " + step.trouble;
    } else {
      Ask(run, step, wanted, entry);
    }
    plan_.entries.push_back(std::move(entry));
  }

  // Plans the forms of a good step that are not stored.
  void Ask(const ScratchRun& run, const ScratchStep& step, const WantedForms& wanted, PlanEntry& entry) {
    entry.store_full = wanted.full && !HoldsContent(members_, step.digest, Form::kFull);
    entry.store_weights = wanted.weights && !HoldsContent(members_, step.digest, Form::kWeights);
    entry.bytes = (entry.store_full ? step.times.bytes : 0) + (entry.store_weights ? step.weight_bytes : 0);
    entry.weight_bytes = entry.store_weights ? step.weight_bytes : 0;
    entry.full_at_most = AtMost(step.entries);
    entry.weights_at_most = AtMost({step.weight_at_most});
    if (policy_.bundle.most > 0) entry.weights_at_most.files += step.weight_bytes / policy_.bundle.most;
    if (entry.store_full) entry.inodes += entry.full_at_most.files;
    if (entry.store_weights) entry.inodes += entry.weights_at_most.files;
    entry.weights_at_most.bytes += step.weight_at_most;  // stripped first, then put into a tar
    entry.weights_at_most.files += kStagedFiles;
    entry.why = entry.stores() ? "" : "stored and verified already: ";
    for (const std::string& reason : wanted.reasons)
      entry.why += (reason == wanted.reasons.front() ? "" : ", ") + reason;
    if (wanted.full && !entry.store_full) entry.why += Claim(step.digest, Form::kFull);
    if (wanted.weights && !entry.store_weights) entry.why += Claim(step.digest, Form::kWeights);
    const bool enough = wanted.full || policy_.weights_suffice;
    const bool superseded = *step.step < run.NewestHealthy() && step.step != run.steps.back().step;
    entry.delete_source = policy_.delete_source && enough && superseded;
  }

  void Schedule(PlanEntry& entry) {
    const std::string& name = entry.title;
    if (entry.trouble) plan_.failures.push_back(fmt::format("{} is {}", name, entry.why));
    if (!entry.stores()) return;
    plan_.bytes += entry.bytes;
    plan_.inodes += entry.inodes;
    plan_.nearest_purge_days = std::min(plan_.nearest_purge_days, entry.purge_days);
    if (plan_.bandwidth > 0)
      entry.finish_days = static_cast<double>(plan_.bytes) / plan_.bandwidth / kDaySeconds;
    const double deadline = entry.purge_days - policy_.margin_days;
    entry.late = std::max(0.0, entry.finish_days) > deadline;
    if (!entry.late) return;
    if (entry.purge_days <= 0)
      plan_.failures.push_back(fmt::format("{} is overdue: the purge may delete it any time", name));
    else if (deadline <= 0 || entry.finish_days < 0)
      plan_.failures.push_back(fmt::format("{} is purged in {:.1f} days, less than the margin of {:g}", name,
                                           entry.purge_days, policy_.margin_days));
    else
      plan_.failures.push_back(
          fmt::format("{} must be proven in {:.1f} days; at {:.0f} MB/s that takes {:.1f}", name, deadline,
                      plan_.bandwidth / 1e6, entry.finish_days));
  }

  FileSystem& fs_;
  const Policy& policy_;
  const int64_t now_;
  std::vector<ArchiveMember> members_;
  StoreUsage usage_;
  Plan plan_;
};

}  // namespace

Result<std::set<std::string>> FilesNotToBundle(FileSystem& fs, const Policy& policy, bool from_tape) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<PruneEntry> entries, PlanPrune(fs, policy));
  const Store store(fs, policy.store);
  const bool recalls = from_tape && !policy.recall.recall.empty();
  std::set<std::string> files;
  for (const PruneEntry& entry : entries)
    if (entry.remove || (!recalls && IsStub(fs, store.Path(entry.file)))) files.insert(entry.file);
  return files;
}

Result<BundlePlan> PlanBundlesBy(FileSystem& fs, const Policy& policy, bool all) {
  CAIRN_ASSIGN_OR_RETURN(const std::set<std::string> left_out, FilesNotToBundle(fs, policy, all));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members, ListStore({fs, policy.store}));
  return PlanBundles(members, policy.bundle, all,
                     [&](const std::string& file) { return left_out.contains(file); });
}

Result<Plan> MakePlan(FileSystem& fs, const Policy& policy, double measured, int64_t now_unix_seconds) {
  Planner planner(fs, policy, now_unix_seconds);
  CAIRN_RETURN_IF_ERROR(planner.ReadStore());
  planner.AddRuns();
  planner.AddTrees();
  Plan plan = std::move(planner).Finish(measured);
  if (policy.bundle.target > 0 && Store(fs, policy.store).IsThere()) {
    CAIRN_ASSIGN_OR_RETURN(plan.bundling, PlanBundlesBy(fs, policy, /*all=*/false));
  }
  return plan;
}

}  // namespace cairn
