// LookAtRuns reads every directory once: steps, access times, manifests, identity. A timeline joins the steps
// on scratch with the members of the same identity in the store, so a step that was purged still counts for
// the classes. WantedSteps selects from it. If a step on scratch cannot be read, it selects twice, with that
// step and without it, and both results count: the step is still wanted, and no other step loses its place to
// it.

#include "tools/archive/policy/run_timeline.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "ckpt/base/canonical_path.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/manifest.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/run/run_health.h"
#include "ckpt/run/run_identity.h"
#include "ckpt/step/find_step.h"
#include "tools/archive/policy/directory_pattern.h"
#include "tools/archive/store/source.h"
#include "tools/archive/store/store_member.h"
#include "tools/place/step_files.h"

namespace cairn {
namespace {

void TakeManifest(const Manifest& manifest, ScratchStep& step) {
  const ArchiveRecord record = RecordOf(manifest, "run");
  step.run = record.run;
  step.digest = record.manifest_digest;
  step.tokens = record.tokens;
  step.healthy = record.healthy;
  step.entries = TarEntries(manifest);
}

// The manifest names the content, so it counts even if the rest of the step cannot be read. Its facts are
// added to `facts`.
ScratchStep LookAt(FileSystem& fs, FoundStep found, std::vector<StepFacts>& facts) {
  ScratchStep step{std::move(found)};
  const std::string& path = step.path;
  const auto names = fs.List(path);
  if (names.ok()) step.times = TimesOf(fs, path, *names);
  if (const auto info = fs.Stat(JoinPath(path, kManifestName)); info.ok())
    step.saved = info->modified_unix_seconds;
  const auto reader = StepReader::Open(fs, path);
  const Result<Manifest> manifest =
      reader.ok() ? Result<Manifest>((*reader)->manifest()) : ReadManifest(fs, path);
  if (!manifest.ok()) {
    step.trouble = names.ok() ? manifest.status().message() : names.status().message();
    return step;
  }
  TakeManifest(*manifest, step);
  facts.push_back(StepFactsOf(*manifest));
  facts.back().step = *step.step;
  if (!reader.ok()) {
    step.trouble = reader.status().message();
    return step;
  }
  for (const ManifestFile& file : (*reader)->manifest().files)
    if (file.name == kIndexName) step.weight_at_most = file.bytes + step.entries.front();
  for (const TensorEntry& tensor : (*reader)->catalog().tensors) {
    if (tensor.role != Role::kWeight) continue;
    const uint64_t bytes = tensor.spec.shape.Volume() * 2;
    step.weight_bytes += bytes;
    step.weight_at_most += PageUp(bytes) + kPageBytes;
  }
  return step;
}

// Sets the directory's own identity; a copy has none before its next save. A directory without an owner, made
// by an older version or a reshape, has that of its newest step.
Status Identify(FileSystem& fs, ScratchRun& run) {
  CAIRN_ASSIGN_OR_RETURN(const RunIdentity identity, IdentifyRun(fs, run.path));
  if (identity.owns()) run.id = identity.run;
  if (identity.ownership == Ownership::kCopied) run.origin = identity.run;
  if (!identity.run.empty()) return OkStatus();
  const auto newest = std::ranges::find_if(run.steps.rbegin(), run.steps.rend(),
                                           [](const ScratchStep& step) { return !step.run.empty(); });
  if (newest != run.steps.rend()) run.id = newest->run;
  return OkStatus();
}

void AddRun(FileSystem& fs, const std::string& path, PolicyRuns& runs) {
  Result<Place> place = PlaceAt(fs, path);
  if (!place.ok()) {
    runs.failures.push_back(
        fmt::format("{}: its steps cannot be listed: {}", path, place.status().message()));
    return;
  }
  NoteCheckpointBeside(fs, *place, runs.notes);
  if (place->kind == PlaceKind::kForeignRun) {
    runs.foreign.push_back(*std::move(place));
    return;
  }
  if (place->of_node()) {
    runs.failures.push_back(
        fmt::format("{}: local steps, of which other nodes have the rest; name the run", path));
    return;
  }
  if (!place->native_run()) {
    const bool step = place->kind == PlaceKind::kStep || ParseStepDirName(LastName(path));
    if (!step && (place->native() || fs.Stat(JoinPath(path, kLockName)).ok())) return;  // nothing saved yet
    runs.failures.push_back(fmt::format(
        "{}: it matches `runs` but contains no step that Cairn knows; a directory under `trees` is stored as "
        "it is",
        path));
    return;
  }
  ScratchRun run{.path = path, .name = NameTree(fs, path).name};
  std::vector<StepFacts> facts;
  for (FoundStep& step : place->steps) run.steps.push_back(LookAt(fs, std::move(step), facts));
  (void)JudgeSteps(fs, path, facts);
  for (const StepFacts& fact : facts) {
    ScratchStep& step = *std::ranges::find(run.steps, fact.step, &ScratchStep::step);
    step.healthy = fact.unhealthy.empty();
    step.commit = fact.commit();
    step.superseded = fact.lineage == Lineage::kSuperseded;
  }
  std::ranges::stable_partition(run.steps, &ScratchStep::superseded);
  if (auto tags = ReadTags(fs, path); tags.ok())
    run.tags = *std::move(tags);
  else
    runs.failures.push_back(tags.status().message());
  if (const Status known = Identify(fs, run); !known.ok()) runs.failures.push_back(known.message());
  runs.runs.push_back(std::move(run));
}

// True if a member was stored from a directory that the pattern matches. Only messages depend on this;
// nothing is stored, kept or removed by it.
bool CameFrom(const std::string& pattern, const ArchiveMember& member) {
  if (!member.record || member.record->source.empty()) return false;
  const std::string& source = member.record->source;
  const std::string parent = std::filesystem::path(source).parent_path().string();
  return MeansPath(pattern, source) || MeansPath(pattern, parent);
}

void MarkShared(PolicyRuns& runs) {
  std::map<std::string, std::vector<ScratchRun*>> by_id;
  for (ScratchRun& run : runs.runs)
    if (!run.id.empty()) by_id[run.id].push_back(&run);
  for (const auto& [id, same] : by_id) {
    if (same.size() < 2) continue;
    std::string paths;
    for (ScratchRun* run : same) {
      run->shared = true;
      paths += (paths.empty() ? "" : ", ") + run->path;
    }
    runs.notes.push_back(
        fmt::format("{}: copies of one run, {}; none of its members is pruned", paths, id.substr(0, 8)));
  }
}

bool Proven(const ArchiveMember& m) {
  return m.state == MemberState::kVerified && m.record && m.form != Form::kFiles;
}

// Steps by number, each once.
std::map<int64_t, TimelineStep> Timeline(const ScratchRun& run, const std::vector<ArchiveMember>& members,
                                         bool all) {
  const auto newest = std::ranges::find_if(run.steps.rbegin(), run.steps.rend(),
                                           [](const ScratchStep& s) { return s.trouble.empty(); });
  const auto beyond = [&](const ArchiveMember& m) {
    return newest != run.steps.rend() && m.step > *newest->step;
  };
  const auto superseded = [&](const ArchiveMember& m) {
    return newest != run.steps.rend() && LineageOf(m.commit(), newest->commit) == Lineage::kSuperseded;
  };
  const auto counts = [&](const ArchiveMember& m) {
    if (!Proven(m) || m.record->run.empty()) return false;
    if (m.record->run == run.origin) return !beyond(m);
    const bool left_behind = superseded(m) || (beyond(m) && m.record->saved_unix_seconds < newest->saved);
    return m.record->run == run.id && (all || (!run.shared && !left_behind));
  };
  std::map<int64_t, TimelineStep> steps;
  for (const ArchiveMember& m : members)
    if (counts(m) && (!superseded(m) || !steps.contains(m.step)))
      steps[m.step] = {m.step, m.record->tokens, m.record->saved_unix_seconds, m.record->healthy,
                       TagsOf(run.tags, ContentOf(*m.record))};
  for (const ScratchStep& step : run.steps)
    if (!step.digest.empty() || !steps.contains(*step.step))
      steps[*step.step] = {*step.step, step.tokens, step.saved, step.healthy && (all || !step.superseded),
                           TagsOf(run.tags, step.digest)};
  return steps;
}

// Adds the line for a pattern without a match: a note if the store has something from it, else a failure.
void NoteNoMatch(const std::string& pattern, const std::vector<ArchiveMember>& members,
                 std::vector<std::string>& failures, std::vector<std::string>& notes) {
  const size_t stored =
      std::ranges::count_if(members, [&](const ArchiveMember& m) { return CameFrom(pattern, m); });
  if (stored > 0)
    notes.push_back(fmt::format("{}: no such directory any more; the store has {} member{} from it", pattern,
                                stored, stored == 1 ? "" : "s"));
  else
    failures.push_back(fmt::format(
        "{}: the policy names it, but no such directory exists, and the store has nothing from there",
        pattern));
}

}  // namespace

std::string ScratchRun::IdOf(const ScratchStep& step) const {
  if (!step.run.empty()) return step.run;
  // Steps before a step of an ancestor are the ancestor's, too.
  for (const ScratchStep& other : steps)
    if (other.step > step.step && !other.run.empty()) return other.run;
  return id;
}

int64_t ScratchRun::NewestHealthy() const {
  for (auto step = steps.rbegin(); step != steps.rend(); ++step)
    if (step->trouble.empty() && step->healthy) return *step->step;
  return -1;
}

std::vector<std::string> MatchPatterns(const std::vector<std::string>& patterns,
                                       const std::vector<ArchiveMember>& members,
                                       std::vector<std::string>& failures, std::vector<std::string>& notes) {
  std::vector<std::string> paths;
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    const DirectoryMatches matches = MatchDirectories(pattern);
    failures.insert(failures.end(), matches.problems.begin(), matches.problems.end());
    if (matches.paths.empty() && matches.problems.empty()) NoteNoMatch(pattern, members, failures, notes);
    for (const std::string& path : matches.paths)
      if (seen.insert(CanonicalPath(path)).second) paths.push_back(path);
  }
  return paths;
}

PolicyRuns LookAtRuns(FileSystem& fs, const Policy& policy, const std::vector<ArchiveMember>& members) {
  PolicyRuns runs;
  for (const std::string& path : MatchPatterns(policy.runs, members, runs.failures, runs.notes))
    AddRun(fs, path, runs);
  MarkShared(runs);
  return runs;
}

std::map<int64_t, WantedForms> WantedSteps(const ScratchRun& run, const std::vector<ArchiveMember>& members,
                                           const std::vector<KeepClass>& classes, bool all) {
  std::map<int64_t, WantedForms> wanted;
  const auto select = [&](const std::map<int64_t, TimelineStep>& steps) {
    std::vector<TimelineStep> timeline;
    for (const auto& [number, step] : steps) timeline.push_back(step);
    for (const auto& [number, forms] : SelectSteps(timeline, classes)) wanted[number].Add(forms);
  };
  std::map<int64_t, TimelineStep> steps = Timeline(run, members, false);
  select(steps);
  // A step that cannot be read does not take the place of another.
  bool unreadable = false;
  for (const ScratchStep& step : run.steps)
    if (!step.trouble.empty() && !HoldsStep(members, run, step, Form::kFull) &&
        !HoldsStep(members, run, step, Form::kWeights)) {
      steps[*step.step].healthy = false;
      unreadable = true;
    }
  if (unreadable) select(steps);
  if (all) select(Timeline(run, members, true));
  return wanted;
}

bool HoldsStep(const std::vector<ArchiveMember>& members, const ScratchRun& run, const ScratchStep& step,
               Form form) {
  if (!step.digest.empty()) return HoldsContent(members, step.digest, form);
  const std::string id = run.IdOf(step);
  return !id.empty() && std::ranges::any_of(members, [&](const ArchiveMember& m) {
    return m.state == MemberState::kVerified && m.form == form && m.record->run == id && m.step == step.step;
  });
}

bool HoldsContent(const std::vector<ArchiveMember>& members, const std::string& manifest_digest, Form form) {
  return !manifest_digest.empty() && std::ranges::any_of(members, [&](const ArchiveMember& m) {
    return m.state == MemberState::kVerified && m.form == form && ContentOf(*m.record) == manifest_digest;
  });
}

}  // namespace cairn
