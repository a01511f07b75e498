#include "tools/seal/place.h"

#include <algorithm>
#include <map>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/run/step_tags.h"
#include "ckpt/step/find_step.h"
#include "convert/formats/megatron/megatron_dist.h"
#include "convert/formats/systems.h"
#include "tools/seal/foreign_run.h"

namespace cairn {
namespace {

// The steps of any system in a run directory, by number.
std::map<int64_t, std::string> StepsIn(FileSystem& fs, const std::string& run_dir) {
  std::map<int64_t, std::string> steps;
  for (const ForeignStep& step : ListRunSteps(fs, run_dir)) steps.emplace(*step.step, step.path);
  const Result<std::vector<int64_t>> native = ListSteps(fs, run_dir);
  for (size_t i = 0; native.ok() && i < native->size(); ++i)
    steps[(*native)[i]] = JoinPath(run_dir, StepDirName((*native)[i]));
  return steps;
}

// "steps 4, 8, 12": the newest of many.
std::string ListOfSteps(const std::map<int64_t, std::string>& steps) {
  constexpr size_t kListed = 10;
  std::string list;
  size_t left = steps.size();
  for (const auto& [step, path] : steps)
    if (left-- <= kListed) list += fmt::format("{}{}", list.empty() ? "" : ", ", step);
  return fmt::format("step{} {}{}", steps.size() == 1 ? "" : "s", steps.size() > kListed ? "..., " : "",
                     list);
}

// A run in a directory that is neither a step nor a checkpoint; empty if it has none.
std::string RunIn(FileSystem& fs, const std::string& directory) {
  constexpr size_t kMostNames = 1024;
  const auto names = fs.List(directory);
  if (!names.ok() || names->size() > kMostNames || IsCheckpoint(fs, directory)) return {};
  for (const std::string& name : *names) {
    const std::string path = JoinPath(directory, name);
    const auto place = PlaceAt(fs, path);
    if (place.ok() && (place->kind == PlaceKind::kRun || place->kind == PlaceKind::kForeignRun)) return path;
  }
  return {};
}

}  // namespace

Result<std::string> StepPath(FileSystem& fs, const std::string& argument) {
  if (std::string place = FindStep(fs, argument).directory; fs.Stat(place).ok()) return place;
  if (const size_t at = argument.rfind('@'); at != argument.npos && at > 0) {
    const std::string run_dir = argument.substr(0, at), name = argument.substr(at + 1);
    const std::optional<int64_t> step = ParseNumber<int64_t>(name, 0);
    if (IsTagName(name) && fs.Stat(run_dir).ok()) return StepOfTag(fs, run_dir, name);
    if (const auto steps = StepsIn(fs, run_dir); step && !steps.empty()) {
      if (const auto found = steps.find(*step); found != steps.end()) return found->second;
      return NotFound("{}: no step {} in it; it has {}", run_dir, *step, ListOfSteps(steps));
    }
  }
  if (argument.find('/') == argument.npos) return argument;
  const std::string parent = ParentDir(argument);
  if (const auto steps = StepsIn(fs, parent); !steps.empty())
    return NotFound("{}: no such step; {} has {}", argument, parent, ListOfSteps(steps));
  return argument;
}

Result<Place> PlaceAt(FileSystem& fs, const std::string& path) {
  const auto is = [&](PlaceKind kind) { return Place{.kind = kind, .path = path}; };
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  if (!info.is_directory()) return is(PlaceKind::kFile);
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path));
  if (std::ranges::find(names, kManifestName) != names.end()) return is(PlaceKind::kStep);
  if (IsSavedByCairnMegatron(fs, path)) return is(PlaceKind::kIteration);
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(fs, path));
  if (!steps.empty()) return is(PlaceKind::kRun);
  if (IsOfCairn(names) || ParseStepDirName(LastName(CanonicalPath(path))))
    return is(PlaceKind::kUnfinishedRun);
  if (IsForeignStep(fs, path)) return is(PlaceKind::kForeignStep);
  std::vector<ForeignStep> others = ListRunSteps(fs, path);
  const PlaceKind kind = others.empty() ? PlaceKind::kTree : PlaceKind::kForeignRun;
  return Place{.kind = kind, .path = path, .steps = std::move(others)};
}

Result<std::vector<ForeignStep>> StepsToSeal(FileSystem& fs, const std::string& argument) {
  CAIRN_ASSIGN_OR_RETURN(Place place, Locate(fs, argument));
  const std::string& path = place.path;
  if (place.kind == PlaceKind::kForeignRun) return std::move(place.steps);
  if (place.kind == PlaceKind::kFile)
    return NotSupported("{} is a file; name the directory that it is in", path);
  if (place.kind == PlaceKind::kStep || ParseStepDirName(LastName(CanonicalPath(path))))
    return NotSupported("{}: a step of Cairn needs no seal; cairn verify checks it", path);
  if (place.native())
    return NotSupported("{}: the steps of a run of Cairn need no seals; cairn ls lists them", path);
  if (place.kind == PlaceKind::kTree) {
    if (const auto unknown = UnknownSteps(fs, path); !unknown.empty())
      return InvalidArgument(
          "{}: {} and {} hold a checkpoint each, but Cairn does not know such steps; name one", path,
          unknown.front(), unknown.back());
    if (const std::string run = RunIn(fs, path); !run.empty())
      return InvalidArgument("{}: {} is a run; a seal is for a step, so name the run", path, run);
  }
  return std::vector{ForeignStep{path, ForeignStepOf(fs, path)}};
}

Result<Place> Locate(FileSystem& fs, const std::string& argument) {
  CAIRN_ASSIGN_OR_RETURN(const std::string path, StepPath(fs, argument));
  return PlaceAt(fs, path);
}

bool IsForeign(FileSystem& fs, const Place& place) {
  if (place.native()) return false;
  const StatusKind kind = Recognise(fs, place.path).status().kind();
  const bool known = kind == StatusKind::kNotSupported && place.kind != PlaceKind::kFile;
  return known || kind == StatusKind::kOk || kind == StatusKind::kInvalidArgument;
}

}  // namespace cairn
