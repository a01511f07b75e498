#include "tools/archive/plan.h"

#include <glob.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "ckpt/layout.h"
#include "ckpt/run_dir.h"
#include "tools/archive/archiver.h"
#include "tools/archive/bundle.h"
#include "tools/archive/bundle_policy.h"
#include "tools/archive/removal.h"
#include "tools/archive/selection.h"
#include "tools/archive/tar_writer.h"

namespace cairn {
namespace {

constexpr double kDaySeconds = 86400;

// Directories that a pattern means; itself where it has no glob in it.
Result<std::vector<std::string>> Expand(const std::string& pattern) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), GLOB_ONLYDIR | GLOB_BRACE, nullptr, &found);
  std::vector<std::string> paths;
  for (size_t i = 0; result == 0 && i < found.gl_pathc; ++i)
    if (std::filesystem::is_directory(found.gl_pathv[i])) paths.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  if (paths.empty() && pattern.find_first_of("*?[{") == std::string::npos)
    return NotFound("{}: the policy names it, and it is not there", pattern);
  return paths;
}

// What is known of one step on scratch.
struct ScratchStep {
  std::string path;
  int64_t step = 0;
  int64_t tokens = 0;
  int64_t saved = 0;
  int64_t accessed = 0;  // of the file that was accessed longest ago
  uint64_t bytes = 0;
  std::vector<uint64_t> entries;  // of its tar
  uint64_t weight_bytes = 0;      // as fp16
  std::string digest;
  std::string trouble;
};

ScratchStep LookAt(FileSystem& fs, const std::string& path, int64_t number) {
  ScratchStep step{.path = path, .step = number};
  step.accessed = std::numeric_limits<int64_t>::max();
  if (const auto names = fs.List(path); names.ok())
    for (const std::string& name : *names)
      if (const auto info = fs.Stat(JoinPath(path, name)); info.ok()) {
        step.accessed = std::min(step.accessed, info->accessed_unix_seconds);
        step.bytes += info->bytes;
        if (name == kManifestName) step.saved = info->modified_unix_seconds;
      }
  const auto reader = StepReader::Open(fs, path);
  if (!reader.ok()) {
    step.trouble = reader.status().message();
    return step;
  }
  const ArchiveRecord record = DescribeSource(**reader);
  step.tokens = record.tokens;
  step.digest = record.manifest_digest;
  step.entries = TarEntries((*reader)->manifest());
  for (const TensorEntry& tensor : (*reader)->catalog().tensors)
    if (tensor.role == Role::kWeight) step.weight_bytes += tensor.spec.shape.Volume() * 2;
  return step;
}

// The name that a run has in the store.
std::string StoreName(const std::string& run_dir) { return NameTree(run_dir).name; }

class Planner {
 public:
  Planner(FileSystem& fs, const Policy& policy, int64_t now) : fs_(fs), policy_(policy), now_(now) {}

  Status ReadStore() {
    if (!fs_.Stat(policy_.store).ok()) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(members_, ListStore(fs_, policy_.store));
    CAIRN_ASSIGN_OR_RETURN(const auto names, fs_.List(policy_.store));
    store_inodes_ = names.size();
    for (const std::string& name : names)
      if (const auto info = fs_.Stat(JoinPath(policy_.store, name)); info.ok()) store_bytes_ += info->bytes;
    return OkStatus();
  }

  Status AddRun(const std::string& run_dir) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, ListSteps(fs_, run_dir));
    if (numbers.empty()) return OkStatus();
    NoteMount(run_dir);
    std::vector<ScratchStep> steps;
    for (const int64_t number : numbers)
      steps.push_back(LookAt(fs_, JoinPath(run_dir, StepDirName(number)), number));
    const std::string name = StoreName(CanonicalPath(run_dir));
    const auto wanted = SelectSteps(Timeline(name, steps), policy_.classes);
    for (const ScratchStep& step : steps) Add(name, step, wanted.at(step.step), step.step == numbers.back());
    return OkStatus();
  }

  Status AddTree(const std::string& directory) {
    NoteMount(directory);
    const Result<std::vector<TreeFile>> files = ListTree(fs_, directory);
    if (!files.ok()) return files.status();
    const ArchiveRecord record = NameTree(directory);
    CAIRN_ASSIGN_OR_RETURN(const auto stored, FindTree(fs_, members_, directory, Links::kRefuse));
    PlanEntry entry{
        .run = record.name, .step = record.step, .source = {.path = directory, .native = false}, .why = {}};
    int64_t accessed = std::numeric_limits<int64_t>::max();
    std::vector<uint64_t> entries;
    for (const TreeFile& file : *files) {
      if (file.kind != EntryKind::kFile) continue;
      entry.bytes += file.info.bytes;
      entries.push_back(file.info.bytes);
      accessed = std::min(accessed, file.info.accessed_unix_seconds);
    }
    entry.purge_days = DaysUntilPurge(accessed, now_, static_cast<int>(policy_.purge_days));
    entry.store_full = !stored;
    entry.why = entry.store_full ? "a tree that the policy names" : "stored and verified already";
    if (entry.store_full) entry.inodes = CountTarPieces(entries, policy_.bundle_max);
    if (!entry.store_full) entry.bytes = 0;
    plan_.entries.push_back(std::move(entry));
    return OkStatus();
  }

  Plan Finish(double measured) && {
    std::ranges::stable_sort(plan_.entries, {},
                             [](const PlanEntry& e) { return std::tuple(!e.stores(), e.purge_days); });
    plan_.bandwidth = policy_.bandwidth > 0 ? policy_.bandwidth : measured;
    plan_.nearest_purge_days = std::numeric_limits<double>::infinity();
    for (PlanEntry& entry : plan_.entries) Schedule(entry);
    CheckQuota();
    return std::move(plan_);
  }

 private:
  void NoteMount(const std::string& path) {
    const Result<AccessTimes> times = AccessTimesAt(path);
    if (!times.ok() || Caveat(*times).empty()) return;
    const std::string note = fmt::format("{}: {}", path, Caveat(*times));
    if (std::ranges::find(plan_.notes, note) == plan_.notes.end()) plan_.notes.push_back(note);
  }

  bool Has(const std::string& digest, Form form) const {
    return std::ranges::any_of(members_, [&](const ArchiveMember& m) {
      if (m.state != MemberState::kVerified || m.form != form) return false;
      return (form == Form::kWeights ? m.record->derived_from : m.record->manifest_digest) == digest;
    });
  }

  // Whether the store holds a proven copy of that number, whatever its content: of a step that cannot be read
  // any more there is nothing to compare.
  bool HasStep(const std::string& run, int64_t step, Form form) const {
    return std::ranges::any_of(members_, [&](const ArchiveMember& m) {
      return m.state == MemberState::kVerified && m.run == run && m.step == step && m.form == form;
    });
  }

  // Steps on scratch and those that only the store still has.
  std::vector<TimelineStep> Timeline(const std::string& run, const std::vector<ScratchStep>& steps) const {
    std::map<int64_t, TimelineStep> all;
    for (const ArchiveMember& m : members_)
      if (m.run == run && m.form != Form::kFiles && m.record)
        all[m.step] = {m.step, m.record->tokens, m.record->saved_unix_seconds};
    for (const ScratchStep& step : steps) all[step.step] = {step.step, step.tokens, step.saved};
    std::vector<TimelineStep> timeline;
    for (const auto& [number, step] : all) timeline.push_back(step);
    return timeline;
  }

  void Add(const std::string& run, const ScratchStep& step, const WantedForms& wanted, bool newest) {
    PlanEntry entry{.run = run, .step = step.step, .source = {.path = step.path}, .why = {}};
    entry.purge_days = DaysUntilPurge(step.accessed, now_, static_cast<int>(policy_.purge_days));
    const bool has_full = Has(step.digest, Form::kFull), has_weights = Has(step.digest, Form::kWeights);
    if (!wanted.full && !wanted.weights) {
      entry.why = "no class asks for it";
    } else if (!step.trouble.empty() && (!wanted.full || HasStep(run, step.step, Form::kFull)) &&
               (!wanted.weights || HasStep(run, step.step, Form::kWeights))) {
      entry.why = "stored and verified; no longer whole on scratch";
    } else if (!step.trouble.empty()) {
      entry.trouble = true;
      entry.why = "asked for, but cannot be read: " + step.trouble;
    } else {
      entry.store_full = wanted.full && !has_full;
      entry.store_weights = wanted.weights && !has_weights;
      entry.bytes = (entry.store_full ? step.bytes : 0) + (entry.store_weights ? step.weight_bytes : 0);
      entry.weight_bytes = entry.store_weights ? step.weight_bytes : 0;
      if (entry.store_full) entry.inodes += CountTarPieces(step.entries, policy_.bundle_max);
      if (entry.store_weights)
        entry.inodes += policy_.bundle_max > 0 ? 1 + step.weight_bytes / policy_.bundle_max : 1;
      entry.why = entry.stores() ? "" : "stored and verified already: ";
      for (const std::string& reason : wanted.reasons)
        entry.why += (reason == wanted.reasons.front() ? "" : ", ") + reason;
      const bool enough = wanted.full || policy_.weights_suffice;
      entry.delete_source = policy_.delete_source && enough && !newest;
    }
    plan_.entries.push_back(std::move(entry));
  }

  void Schedule(PlanEntry& entry) {
    const std::string name = fmt::format("{}@{}", entry.run, entry.step);
    if (entry.trouble) plan_.failures.push_back(fmt::format("{} is {}", name, entry.why));
    if (!entry.stores()) return;
    entry.inodes += (entry.store_full + entry.store_weights) * (policy_.parity > 0 ? 2 : 1);
    plan_.bytes += entry.bytes;
    plan_.inodes += entry.inodes;
    plan_.nearest_purge_days = std::min(plan_.nearest_purge_days, entry.purge_days);
    if (plan_.bandwidth > 0)
      entry.finish_days = static_cast<double>(plan_.bytes) / plan_.bandwidth / kDaySeconds;
    const double deadline = entry.purge_days - policy_.margin_days;
    entry.late = std::max(0.0, entry.finish_days) > deadline;
    if (!entry.late) return;
    if (entry.purge_days <= 0)
      plan_.failures.push_back(fmt::format("{} is overdue: the purge may take it any time", name));
    else if (deadline <= 0 || entry.finish_days < 0)
      plan_.failures.push_back(fmt::format("{} goes in {:.1f} days, less than the margin of {:g}", name,
                                           entry.purge_days, policy_.margin_days));
    else
      plan_.failures.push_back(
          fmt::format("{} must be proven in {:.1f} days; at {:.0f} MB/s that takes {:.1f}", name, deadline,
                      plan_.bandwidth / 1e6, entry.finish_days));
  }

  void CheckQuota() {
    if (policy_.quota_bytes > 0 && store_bytes_ + plan_.bytes > policy_.quota_bytes)
      plan_.failures.push_back(fmt::format("the store would hold {:.1f} GB, the quota is {:.1f} GB",
                                           static_cast<double>(store_bytes_ + plan_.bytes) / 1e9,
                                           static_cast<double>(policy_.quota_bytes) / 1e9));
    if (policy_.quota_inodes > 0 && store_inodes_ + plan_.inodes > policy_.quota_inodes)
      plan_.failures.push_back(fmt::format("the store would hold {} files, the quota is {}",
                                           store_inodes_ + plan_.inodes, policy_.quota_inodes));
  }

  FileSystem& fs_;
  const Policy& policy_;
  const int64_t now_;
  std::vector<ArchiveMember> members_;
  uint64_t store_bytes_ = 0, store_inodes_ = 0;
  Plan plan_;
};

// Run directories of the policy, by the name that they have in the store.
Result<std::map<std::string, std::string>> RunsOf(const Policy& policy) {
  std::map<std::string, std::string> runs;
  for (const std::string& pattern : policy.runs) {
    const Result<std::vector<std::string>> paths = Expand(pattern);
    if (!paths.ok()) continue;  // gone from scratch; the store still has it
    for (const std::string& path : *paths) runs[StoreName(CanonicalPath(path))] = path;
  }
  return runs;
}

// What is to be done with a file of the store.
struct SharedFile {
  size_t members = 0, kept = 0;
  uint64_t bytes = 0, unwanted_bytes = 0;
  bool proven = true;  // all of them

  // Whether what is unwanted is worth it, and the rest can be moved: all was proven, and the bundle has no
  // members besides, other copies of which are what counts.
  bool Rewrites(FileSystem& fs, const Policy& policy, const std::string& file) const {
    if (policy.rewrite <= 0 || !proven ||
        static_cast<double>(unwanted_bytes) < policy.rewrite * static_cast<double>(bytes))
      return false;
    const Result<Bundle> bundle = ReadBundle(fs, policy.store, file);
    return bundle.ok() && bundle->members.size() == members;
  }
};

// A bundle goes only as a whole, or is written anew.
void KeepSharedFiles(FileSystem& fs, const Policy& policy, std::vector<PruneEntry>& entries) {
  std::map<std::string, SharedFile> files;
  for (const PruneEntry& entry : entries) {
    SharedFile& file = files[entry.file];
    ++file.members;
    file.kept += !entry.remove;
    file.bytes += entry.bytes;
    if (entry.remove) file.unwanted_bytes += entry.bytes;
    file.proven = file.proven && entry.proven;
  }
  std::map<std::string, bool> rewritten;
  for (const auto& [name, file] : files)
    rewritten[name] = file.kept > 0 && file.kept < file.members && file.Rewrites(fs, policy, name);
  for (PruneEntry& entry : entries) {
    const size_t kept = files[entry.file].kept;
    if (!entry.remove || kept == 0) continue;
    entry.rewrite = rewritten[entry.file];
    entry.remove = entry.rewrite;
    entry.why += entry.rewrite ? fmt::format("; its bundle {} is written anew without it", entry.file)
                               : fmt::format(", but {} of its bundle {} {} kept", kept, entry.file,
                                             kept == 1 ? "is" : "are");
  }
}

}  // namespace

Result<Plan> MakePlan(FileSystem& fs, const Policy& policy, double measured, int64_t now_unix_seconds) {
  Planner planner(fs, policy, now_unix_seconds);
  CAIRN_RETURN_IF_ERROR(planner.ReadStore());
  for (const std::string& pattern : policy.runs) {
    CAIRN_ASSIGN_OR_RETURN(const auto paths, Expand(pattern));
    for (const std::string& path : paths) CAIRN_RETURN_IF_ERROR(planner.AddRun(path));
  }
  for (const std::string& pattern : policy.trees) {
    CAIRN_ASSIGN_OR_RETURN(const auto paths, Expand(pattern));
    for (const std::string& path : paths) CAIRN_RETURN_IF_ERROR(planner.AddTree(path));
  }
  Plan plan = std::move(planner).Finish(measured);
  if (policy.bundle > 0 && fs.Stat(policy.store).ok()) {
    CAIRN_ASSIGN_OR_RETURN(plan.bundling, PlanBundlesBy(fs, policy, /*all=*/false));
  }
  return plan;
}

Result<std::vector<PruneEntry>> PlanPrune(FileSystem& fs, const Policy& policy) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members, ListStore(fs, policy.store));
  CAIRN_ASSIGN_OR_RETURN(const auto runs, RunsOf(policy));
  std::map<std::string, std::map<int64_t, TimelineStep>> timelines;
  std::map<std::string, int64_t> newest_full;  // of each run, proven
  for (const ArchiveMember& m : members) {
    if (!m.record || m.form == Form::kFiles) continue;
    timelines[m.run][m.step] = {m.step, m.record->tokens, m.record->saved_unix_seconds};
    if (m.form == Form::kFull && m.state == MemberState::kVerified)
      newest_full[m.run] = std::max(newest_full[m.run], m.step);
  }
  for (const auto& [name, path] : runs)
    if (const auto numbers = ListSteps(fs, path); numbers.ok())
      for (const int64_t number : *numbers)
        if (!timelines[name].contains(number)) {
          const ScratchStep step = LookAt(fs, JoinPath(path, StepDirName(number)), number);
          timelines[name][number] = {number, step.tokens, step.saved};
        }
  std::vector<PruneEntry> entries;
  for (const ArchiveMember& m : members) {
    PruneEntry entry{m.tar, m.file(), m.run, m.step, m.bytes, m.state == MemberState::kVerified};
    std::vector<TimelineStep> timeline;
    for (const auto& [number, step] : timelines[m.run]) timeline.push_back(step);
    const auto selected = SelectSteps(timeline, policy.classes);
    const auto found = selected.find(m.step);
    const WantedForms wanted = found == selected.end() ? WantedForms{} : found->second;
    if (m.form == Form::kFiles) {
      entry.why = "a tree; no class is about those";
    } else if (!runs.contains(m.run)) {
      entry.why = "of a run that the policy does not name";
    } else if (m.state != MemberState::kVerified) {
      entry.why = fmt::format("{}; look at it first", Name(m.state));
    } else if (m.form == Form::kFull ? wanted.full : wanted.weights) {
      for (const std::string& reason : wanted.reasons) entry.why += (entry.why.empty() ? "" : ", ") + reason;
    } else if (m.form == Form::kFull && wanted.weights &&
               std::ranges::none_of(members, [&](const ArchiveMember& other) {
                 return other.state == MemberState::kVerified && other.form == Form::kWeights &&
                        other.record->derived_from == m.record->manifest_digest;
               })) {
      entry.why = "its weights are asked for and stored nowhere else";
    } else if (m.form == Form::kFull && newest_full[m.run] == m.step) {
      entry.why = "the newest full copy of its run";
    } else {
      entry.remove = true;
      entry.why = "no class asks for it";
    }
    entries.push_back(std::move(entry));
  }
  KeepSharedFiles(fs, policy, entries);
  return entries;
}

Status RemovePruned(FileSystem& fs, const std::string& store, const std::vector<PruneEntry>& entries) {
  std::set<std::string> files;
  for (const PruneEntry& entry : entries)
    if (entry.remove && !entry.rewrite && files.insert(entry.file).second)
      CAIRN_RETURN_IF_ERROR(RemoveMember(fs, store, entry.file));
  return OkStatus();
}

}  // namespace cairn
