// A step's name has its number, and shows whether it is partial, superseded or being deleted. Its files'
// times are read next, and only then is a committed or superseded step opened, because opening accesses its
// files. Its verify record counts as long as the files look the same. Later steps show whether a step is
// healthy, so verdicts are added when all steps of a run are known.

#include "tools/check/run_listing.h"

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/posix_error.h"
#include "ckpt/model/layout.h"
#include "ckpt/step/find_step.h"
#include "convert/formats/systems.h"
#include "tools/seal/place.h"
#include "tools/seal/seal_check.h"
#include "tools/seal/step_parts.h"

namespace cairn {
namespace {

// "step-00000040", marked or not.
std::optional<int64_t> StepOfName(std::string_view name) {
  if (const auto step = ParseStepDirName(name)) return step;
  if (!ParseMarkedDirName(name)) return std::nullopt;
  return ParseStepDirName(name.substr(0, name.find('.')));
}

// Adds the size and the times of files. One that has vanished meanwhile does not count.
void ReadTimes(FileSystem& fs, const std::vector<std::string>& names, StepListing& step) {
  int64_t oldest = INT64_MAX;
  for (const std::string& name : names) {
    const Result<FileInfo> info = fs.Stat(JoinPath(step.directory, name));
    if (!info.ok()) continue;
    step.bytes += info->bytes;
    step.modified_unix_seconds = std::max(step.modified_unix_seconds, info->modified_unix_seconds);
    oldest = std::min(oldest, info->accessed_unix_seconds);
  }
  if (oldest != INT64_MAX) step.accessed_unix_seconds = oldest;
}

// A purge of a virtual step's shards is a purge of the step.
void AddShardTimes(FileSystem& fs, const StepReader& reader, StepListing& step) {
  for (const ManifestFile& file : step.manifest->files)
    if (const auto info = fs.Stat(JoinPath(reader.DirectoryOf(file.name), file.name)); info.ok())
      step.accessed_unix_seconds = std::min(step.accessed_unix_seconds, info->accessed_unix_seconds);
}

void ReadCatalog(FileSystem& fs, StepListing& step) {
  const auto reader = StepReader::Open(fs, step.directory);
  if (!reader.ok()) {
    step.state = IsRefusal(reader.status()) ? "unreadable" : "damaged";
    step.trouble = reader.status().message();
    return;
  }
  step.manifest = (*reader)->manifest();
  RenewHold(fs, step.directory, *step.manifest);
  step.step = step.manifest->step;
  if (const auto health = HealthOf(step.manifest->state)) step.unhealthy = WhyUnhealthy(*health);
  step.checks = ReadVerifyRecord(fs, step.directory, *step.manifest);
  step.standing = StandingOf(step.checks, LookAtFiles(fs, step.directory, *step.manifest));
  step.trouble = step.standing.why;
  const Trust trust = step.standing.trust;
  if (trust == Trust::kDamaged || (trust != Trust::kUnverified && step.state == "committed"))
    step.state = Name(trust);
  if (!step.manifest->shards.empty()) AddShardTimes(fs, **reader, step);
  for (const TensorEntry& tensor : (*reader)->catalog().tensors)
    step.role_bytes[tensor.role] += tensor.bytes();
}

// Times come first: opening a step accesses its files.
StepListing ListStep(FileSystem& fs, const std::string& directory, std::string_view name) {
  StepListing step{.directory = directory};
  step.step = StepOfName(name).value_or(0);
  step.state = ParseMarkedDirName(name).value_or("committed");
  if (const auto names = fs.List(directory); names.ok()) ReadTimes(fs, *names, step);
  if (step.state == "committed" || step.state == "superseded") ReadCatalog(fs, step);
  if (!ParseStepDirName(name)) return step;
  if (auto holds = HoldsOf(fs, ParentDir(directory), step.step); holds.ok()) step.holds = *std::move(holds);
  return step;
}

// Adds to each step the verdict of the steps that followed it in its run directory.
void AddVerdicts(FileSystem& fs, const std::string& run_dir, std::vector<StepListing>& steps) {
  const Result<RunSteps> run = ReadRunSteps(fs, run_dir);
  if (!run.ok()) return;
  std::map<std::string, StepFacts> by_name;
  for (const StepFacts& fact : run->steps) by_name[StepDirName(fact.step)] = fact;
  for (StepListing& step : steps) {
    const auto found = by_name.find(std::string(LastName(step.directory)));
    if (found == by_name.end()) continue;
    step.unhealthy = found->second.unhealthy;
    if (step.state == Name(Trust::kDamaged)) continue;
    if (found->second.lineage == Lineage::kSuperseded) step.state = "superseded";
    if (found->second.lineage == Lineage::kOtherRun) step.state = "of another run";
  }
}

// If tags cannot be read, the steps are listed all the same.
void AddTags(FileSystem& fs, const std::string& run_dir, RunListing& run) {
  const Result<std::vector<StepTag>> tags = ReadTags(fs, run_dir);
  if (!tags.ok()) return;
  std::set<std::string> there;
  for (StepListing& step : run.steps) {
    if (step.manifest) step.tags = TagsOf(*tags, ToHex(DigestOf(EncodeManifest(*step.manifest))));
    there.insert(step.tags.begin(), step.tags.end());
  }
  for (const StepTag& tag : *tags)
    if (run.directory == run_dir && !there.contains(tag.name)) run.lost_tags.push_back(tag);
}

// In the order of their commits (branch.h). A step without a readable manifest belongs to the newest branch.
void SortByCommit(std::vector<StepListing>& steps) {
  const auto branch = [](const StepListing& step) { return BranchedStep::Of(*step.manifest).branch(); };
  int64_t newest = 0;
  for (const StepListing& step : steps)
    if (step.manifest) newest = std::max(newest, branch(step));
  std::ranges::stable_sort(steps, {}, [&](const StepListing& step) {
    return std::pair(step.manifest ? branch(step) : newest, step.step);
  });
}

// Nothing if `directory` is not a run directory.
std::optional<RunListing> ListRun(FileSystem& fs, const std::string& directory) {
  const auto names = ListAtOnce(fs, directory);
  if (!names.ok()) return std::nullopt;
  RunListing run{.directory = directory};
  for (const std::string& name : *names)
    if (const auto step = StepOfName(name))
      run.steps.push_back(
          ListStep(fs, JoinPath(directory, name), WaitsAside(*names, name) ? StepDirName(*step) : name));
  if (run.steps.empty()) return std::nullopt;
  SortByCommit(run.steps);
  AddVerdicts(fs, directory, run.steps);
  AddTags(fs, directory, run);
  return run;
}

// Whether it is sealed, or of a known format; one that is known and not read is an error of RecogniseAll().
bool IsKnownForeign(FileSystem& fs, const std::string& path) {
  if (HasSeal(fs, path)) return true;
  const auto found = RecogniseAll(fs, path);
  return !found.ok() || !found->empty();
}

// A seal is compared with names, sizes and times; no file is read for it.
void ReadSealState(FileSystem& fs, const ForeignStep& foreign, const std::vector<StepFile>& files,
                   StepListing& step) {
  if (!HasSeal(fs, foreign.path)) {
    step.trouble = WhyUnfinished(fs, foreign, files, /*strict=*/true, step.modified_unix_seconds, 0);
    step.state = step.trouble.empty() ? "not sealed" : "being written";
    return;
  }
  const auto seal = ReadSeal(fs, foreign.path);
  const SealReport look = seal.ok() ? CheckSeal(fs, foreign.path, *seal, SealDepth::kLook) : SealReport{};
  step.state = "sealed";
  if (!seal.ok())
    step.trouble = seal.status().message();
  else if (!look.problems.empty())
    step.trouble = ToString(look.problems[0]);
  else if (!look.touched.empty())
    step.trouble = fmt::format("{} has a different time; cairn verify reads it", look.touched[0]);
  if (!step.trouble.empty()) {
    step.state = "changed since sealed";
  } else if (!seal->problems.empty()) {
    step.state = "sealed with problems";
    step.trouble = seal->problems.front();
  }
}

StepListing ListForeignStep(FileSystem& fs, const ForeignStep& foreign) {
  StepListing step{
      .directory = foreign.path, .step = foreign.step.value_or(0), .system = SystemOf(fs, foreign.path)};
  const auto files = ListStepFiles(fs, foreign.path);
  if (files.ok()) {
    std::vector<std::string> names;
    for (const StepFile& file : *files) names.push_back(file.name);
    ReadTimes(fs, names, step);
    ReadSealState(fs, foreign, *files, step);
  } else {
    step.state = "damaged";
    step.trouble = files.status().message();
  }
  return step;
}

// A run of another system: at least one of its steps is sealed or recognised.
std::optional<RunListing> ListForeignRun(FileSystem& fs, const std::string& directory) {
  const std::vector<ForeignStep> steps = ListRunSteps(fs, directory);
  if (std::ranges::none_of(steps, [&](const ForeignStep& step) { return IsKnownForeign(fs, step.path); }))
    return std::nullopt;
  RunListing run{.directory = directory};
  for (const ForeignStep& step : steps) run.steps.push_back(ListForeignStep(fs, step));
  return run;
}

}  // namespace

Result<std::vector<RunListing>> ListRuns(FileSystem& fs, const std::string& argument) {
  CAIRN_ASSIGN_OR_RETURN(const Place place, Locate(fs, argument));
  const std::string& path = place.path;
  if (place.kind == PlaceKind::kStep) {
    const std::string step(WithoutSlashes(path));
    RunListing alone{path, {ListStep(fs, step, LastName(step))}};
    AddVerdicts(fs, ParentDir(step), alone.steps);
    AddTags(fs, ParentDir(step), alone);
    return std::vector{std::move(alone)};
  }
  if (auto run = ListRun(fs, path)) return std::vector{*std::move(run)};
  const bool known =
      (place.kind == PlaceKind::kForeignStep || place.kind == PlaceKind::kTree) && IsKnownForeign(fs, path);
  const auto itself = [&] {
    return std::vector{RunListing{path, {ListForeignStep(fs, {path, ForeignStepOf(fs, path)})}}};
  };
  if (known && (place.kind == PlaceKind::kForeignStep || IsCheckpoint(fs, path))) return itself();
  if (auto run = ListForeignRun(fs, path)) return std::vector{*std::move(run)};
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path));
  std::vector<RunListing> runs;
  for (const std::string& name : names) {
    const std::string below = JoinPath(path, name);
    if (auto run = ListRun(fs, below))
      runs.push_back(*std::move(run));
    else if (auto foreign = ListForeignRun(fs, below))
      runs.push_back(*std::move(foreign));
  }
  if (!runs.empty()) return runs;
  if (const auto unknown = UnknownSteps(fs, path); !unknown.empty())
    return NotFound("{}: it contains no run and no step that Cairn knows; {} and {} hold a checkpoint each",
                    path, unknown.front(), unknown.back());
  if (known) return itself();  // around the only checkpoint in it
  return NotFound("{}: it contains no run and no step", path);
}

}  // namespace cairn
