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
#include "tools/place/finished.h"
#include "tools/place/place.h"
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

// A purge of a virtual step's shards is a purge of the step.
void AddShardTimes(FileSystem& fs, const StepReader& reader, FileTimes& times) {
  for (const ManifestFile& file : reader.manifest().files)
    if (const auto info = fs.Stat(JoinPath(reader.DirectoryOf(file.name), file.name)); info.ok())
      times.first_accessed = std::min(times.first_accessed, info->accessed_unix_seconds);
}

void ReadCatalog(FileSystem& fs, StepListing& step) {
  const auto reader = StepReader::Open(fs, step.path);
  if (!reader.ok()) {
    step.state = IsRefusal(reader.status()) ? "unreadable" : "damaged";
    step.trouble = reader.status().message();
    return;
  }
  step.manifest = (*reader)->manifest();
  RenewHold(fs, step.path, *step.manifest);
  step.step = step.manifest->step;
  if (const auto health = HealthOf(step.manifest->state)) step.unhealthy = WhyUnhealthy(*health);
  step.checks = ReadVerifyRecord(fs, step.path, *step.manifest);
  step.standing = StandingOf(step.checks, StatFiles(fs, step.path, *step.manifest));
  step.trouble = step.standing.why;
  const Trust trust = step.standing.trust;
  if (trust == Trust::kDamaged || (trust != Trust::kUnverified && step.state == "committed"))
    step.state = Name(trust);
  if (!step.manifest->shards.empty()) AddShardTimes(fs, **reader, step.times);
  for (const TensorEntry& tensor : (*reader)->catalog().tensors)
    step.role_bytes[tensor.role] += tensor.bytes();
}

// Times come first: opening a step accesses its files.
StepListing ListStep(FileSystem& fs, const std::string& directory, std::string_view name) {
  StepListing step{{.path = directory, .step = StepOfName(name).value_or(0)}};
  step.state = ParseMarkedDirName(name).value_or("committed");
  if (const auto names = fs.List(directory); names.ok()) step.times = TimesOf(fs, directory, *names);
  if (step.state == "committed" || step.state == "superseded") ReadCatalog(fs, step);
  if (!ParseStepDirName(name)) return step;
  if (auto holds = HoldsOf(fs, ParentDir(directory), *step.step); holds.ok()) step.holds = *std::move(holds);
  return step;
}

// Adds to each step the verdict of the steps that followed it in its run directory.
void AddVerdicts(FileSystem& fs, const std::string& run_dir, std::vector<StepListing>& steps) {
  const Result<RunSteps> run = ReadRunSteps(fs, run_dir);
  if (!run.ok()) return;
  std::map<std::string, StepFacts> by_name;
  for (const StepFacts& fact : run->steps) by_name[StepDirName(fact.step)] = fact;
  for (StepListing& step : steps) {
    const auto found = by_name.find(std::string(LastName(step.path)));
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
    return std::pair(step.manifest ? branch(step) : newest, *step.step);
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

// Local steps of this node: sizes and the headers of parity.
RunListing ListNode(FileSystem& fs, const Place& place) {
  const bool step = place.kind == PlaceKind::kNodeStep;
  const std::string directory(WithoutSlashes(place.path));
  const auto owner = ReadLocalOwner(fs, step ? ParentDir(directory) : directory);
  RunListing run{.directory = place.path};
  if (owner.ok()) run.owner = *owner;
  for (const FoundStep& found : place.steps) {
    StepListing listing{found};
    if (!listing.step) listing.step = StepOfName(LastName(directory)).value_or(0);
    if (const auto names = fs.List(found.path); names.ok()) listing.times = TimesOf(fs, found.path, *names);
    VerifyReport report;
    listing.part = CheckNodePart(fs, found.path, /*hash=*/false, report);
    if (report.trouble.kind() == StatusKind::kNotFound) continue;  // removed meanwhile
    listing.manifest = listing.part->manifest;
    listing.state = report.good() ? "whole here" : "damaged here";
    if (!report.good()) listing.trouble = report.status().message();
    run.steps.push_back(std::move(listing));
  }
  return run;
}

// A seal is compared with names, sizes and times; no file is read for it.
void ReadSealState(FileSystem& fs, const std::vector<StepFile>& files, StepListing& step) {
  if (!step.sealed) {
    step.trouble = WhyUnfinished(fs, step, files, /*strict=*/true);
    const auto info = fs.Stat(step.path);
    const bool one_file = info.ok() && !info->is_directory();
    step.state = !step.trouble.empty() ? "being written" : one_file ? "one file" : "not sealed";
    return;
  }
  const auto seal = ReadSeal(fs, step.path);
  const SealReport look = seal.ok() ? CheckSeal(fs, step.path, *seal, SealDepth::kLook) : SealReport{};
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

StepListing ListForeignStep(FileSystem& fs, const FoundStep& found) {
  StepListing step{found};
  step.step = found.step.value_or(0);
  step.system = SystemOf(fs, found.path);
  const auto files = ListStepFiles(fs, found.path);
  if (files.ok()) {
    step.times = TimesOf(*files);
    ReadSealState(fs, *files, step);
  } else {
    step.state = "damaged";
    step.trouble = files.status().message();
  }
  return step;
}

// At least one of the steps is sealed, or of a known format; one that is known and not read is an error of
// RecogniseAll().
bool HasKnownStep(FileSystem& fs, const Place& place) {
  return std::ranges::any_of(place.steps, [&](const FoundStep& step) {
    if (step.sealed) return true;
    const auto found = RecogniseAll(fs, step.path);
    return !found.ok() || !found->empty();
  });
}

RunListing ListForeign(FileSystem& fs, const Place& place) {
  RunListing run{.directory = place.path};
  for (const FoundStep& step : place.steps) run.steps.push_back(ListForeignStep(fs, step));
  return run;
}

// The run of any system at a place, or nothing.
std::optional<RunListing> ListRunAt(FileSystem& fs, const Place& place) {
  if (place.of_node()) return ListNode(fs, place);
  if (place.native()) return ListRun(fs, place.path);
  if (!place.foreign_run() || !HasKnownStep(fs, place)) return std::nullopt;
  return ListForeign(fs, place);
}

}  // namespace

Result<std::vector<RunListing>> ListRuns(FileSystem& fs, const std::string& argument) {
  CAIRN_ASSIGN_OR_RETURN(const Place place, Locate(fs, argument));
  const std::string& path = place.path;
  if (place.kind == PlaceKind::kMember)
    return NotSupported("{}: an archived step; cairn archive ls lists it", argument);
  if (place.kind == PlaceKind::kStep) {
    const std::string step(WithoutSlashes(path));
    RunListing alone{path, {ListStep(fs, step, LastName(step))}};
    AddVerdicts(fs, ParentDir(step), alone.steps);
    AddTags(fs, ParentDir(step), alone);
    return std::vector{std::move(alone)};
  }
  if (auto run = ListRunAt(fs, place)) {
    run->beside = CheckpointBesideSteps(fs, place);
    return std::vector{*std::move(run)};
  }
  const bool step = place.kind == PlaceKind::kForeignStep;
  const bool known = (step || place.kind == PlaceKind::kTree) && HasKnownStep(fs, place);
  if (known && (step || IsCheckpoint(fs, path))) return std::vector{ListForeign(fs, place)};
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path));
  std::vector<RunListing> runs;
  for (const std::string& name : names)
    if (const auto below = PlaceAt(fs, JoinPath(path, name)); below.ok())
      if (auto run = ListRunAt(fs, *below)) runs.push_back(*std::move(run));
  if (!runs.empty()) return runs;
  if (const auto unknown = UnknownSteps(fs, place); !unknown.empty())
    return NotFound("{}: it contains no run and no step that Cairn knows; {} and {} hold a checkpoint each",
                    path, unknown.front(), unknown.back());
  if (known) return std::vector{ListForeign(fs, place)};  // around the only checkpoint in it
  return NotFound("{}: it contains no run and no step", path);
}

}  // namespace cairn
