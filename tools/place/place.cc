#include "tools/place/place.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/job/local_owner.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/run/step_tags.h"
#include "ckpt/step/find_step.h"
#include "convert/formats/megatron/megatron_dist.h"
#include "convert/formats/megatron/megatron_lm.h"
#include "convert/formats/systems.h"
#include "tools/place/finished.h"

namespace cairn {
namespace {

constexpr size_t kMostUnnamed = 1024;  // entries of a run in which steps are looked for by their files

Result<std::vector<FoundStep>> NativeSteps(FileSystem& fs, const std::string& run_dir) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, ListSteps(fs, run_dir));
  std::vector<FoundStep> steps;
  for (const int64_t number : numbers)
    steps.push_back({.path = JoinPath(run_dir, StepDirName(number)), .step = number, .of_run = true});
  return steps;
}

// Files that are a step each, by number; links to them are other names.
std::vector<FoundStep> FilesOfSteps(FileSystem& fs, const std::string& directory,
                                    const std::vector<std::string>& names) {
  std::vector<FoundStep> steps;
  for (const std::string& name : names)
    for (const TrainerLayout& layout : TrainerLayouts()) {
      const auto number = layout.StepOfFile(name);
      if (!number) continue;
      const std::string path = JoinPath(directory, name);
      if (const auto info = fs.LinkStat(path); info.ok() && info->kind == FileKind::kFile)
        steps.push_back({.path = path, .step = number, .native = false, .of_run = true, .layout = &layout});
      break;
    }
  std::ranges::stable_sort(steps, {}, &FoundStep::step);
  return steps;
}

// The steps of any system in a run directory, by number.
std::map<int64_t, std::string> StepsIn(FileSystem& fs, const std::string& run_dir) {
  std::map<int64_t, std::string> steps;
  for (const FoundStep& step : ListForeignSteps(fs, run_dir)) steps.emplace(*step.step, step.path);
  if (const auto names = fs.List(run_dir); names.ok())
    for (const FoundStep& step : FilesOfSteps(fs, run_dir, *names)) steps.emplace(*step.step, step.path);
  const auto native = NativeSteps(fs, run_dir);
  for (size_t i = 0; native.ok() && i < native->size(); ++i) steps[*(*native)[i].step] = (*native)[i].path;
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

// A training's local steps on this node.
bool IsOfNode(FileSystem& fs, const std::string& directory) {
  return fs.Stat(JoinPath(directory, kLocalOwnerName)).ok() && ReadLocalOwner(fs, directory).ok();
}

// A directory of steps can be one itself: transformers puts DeepSpeed's global_step40 into checkpoint-40. It
// is not if the steps are of the program whose file it has: a training of transformers ends with a release
// and trainer_state.json beside its checkpoints.
bool HasOwnState(const std::vector<std::string>& names, const std::vector<FoundStep>& steps) {
  return std::ranges::any_of(TrainerLayouts(), [&](const TrainerLayout& layout) {
    return std::ranges::find(names, layout.last) != names.end() &&
           std::ranges::none_of(steps, [&](const FoundStep& step) {
             return step.layout && step.layout->format == layout.format;
           });
  });
}

}  // namespace

std::pair<std::string, std::string> SplitMemberName(FileSystem& fs, const std::string& argument) {
  const size_t colon = argument.rfind(':'), at = argument.rfind('@');
  const bool named = colon != argument.npos && colon > 0 && argument.find('/', colon) == argument.npos;
  const bool run = named && at != argument.npos && at > colon && fs.Stat(argument.substr(0, at)).ok();
  if (!named || run || fs.Stat(argument).ok()) return {argument, ""};
  return {argument.substr(0, colon), argument.substr(colon + 1)};
}

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

Result<Place> Locate(FileSystem& fs, const std::string& argument) {
  if (auto [store, member] = SplitMemberName(fs, argument); !member.empty())
    return Place{.kind = PlaceKind::kMember, .path = std::move(store), .member = std::move(member)};
  CAIRN_ASSIGN_OR_RETURN(const std::string path, StepPath(fs, argument));
  return PlaceAt(fs, path);
}

Result<Place> PlaceAt(FileSystem& fs, const std::string& path) {
  Place place{.kind = PlaceKind::kFile, .path = path, .native_path = {}};
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  if (!info.is_directory()) return place;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(path));
  const auto has = [&](std::string_view name) { return std::ranges::find(names, name) != names.end(); };
  place.sealed = has(kSealName);
  const auto native = [&](PlaceKind kind) {
    place.kind = kind;
    place.native_path = path;
    return std::move(place);
  };
  if (has(kManifestName)) {
    place.steps = {{.path = path, .sealed = place.sealed}};
    return native(IsOfNode(fs, ParentDir(std::string(WithoutSlashes(path)))) ? PlaceKind::kNodeStep
                                                                             : PlaceKind::kStep);
  }
  CAIRN_ASSIGN_OR_RETURN(place.steps, NativeSteps(fs, path));
  if (has(kLocalOwnerName) && IsOfNode(fs, path)) return native(PlaceKind::kNodeRun);
  if (IsSavedByCairnMegatron(fs, path)) return native(PlaceKind::kIteration);
  if (!place.steps.empty()) return native(PlaceKind::kRun);
  if (IsOfCairn(names) || ParseStepDirName(LastName(CanonicalPath(path))))
    return native(PlaceKind::kUnfinishedRun);
  const FoundStep itself = FoundStepAt(fs, path);
  bool step = place.sealed || itself.step;
  if (!step) place.steps = ListForeignSteps(fs, path);
  step = step || HasOwnState(names, place.steps);
  place.kind = step ? PlaceKind::kForeignStep : PlaceKind::kForeignRun;
  if (!step && place.steps.empty()) {
    place.steps = FilesOfSteps(fs, path, names);
    const bool run = !place.steps.empty() && !IsCheckpoint(fs, path);
    place.kind = run ? PlaceKind::kFileRun : PlaceKind::kTree;
  }
  if (!place.foreign_run()) place.steps = {itself};
  const Result<std::string> iteration = IterationOf(fs, path);
  if (iteration.ok() && IsSavedByCairnMegatron(fs, *iteration)) place.native_path = *iteration;
  return place;
}

FoundStep FoundStepAt(FileSystem& fs, const std::string& directory) {
  FoundStep found{.path = directory, .native = false};
  found.sealed = fs.Stat(JoinPath(directory, kSealName)).ok();
  if (const auto step = NamedStepOf(fs, directory)) {
    found.step = step->step;
    found.layout = step->layout;
    found.named = step->named;
  }
  return found;
}

std::vector<FoundStep> ListForeignSteps(FileSystem& fs, const std::string& directory) {
  std::vector<FoundStep> steps;
  const auto names = fs.List(directory);
  if (!names.ok()) return steps;
  for (const std::string& name : *names) {
    if (ParseStepDirName(name) || ParseMarkedDirName(name)) continue;
    const std::string path = JoinPath(directory, name);
    if (!ParseForeignStep(name)) {  // a link is then another name of a step: "last.ckpt"
      const auto link = fs.LinkStat(path);
      if (names->size() > kMostUnnamed || !link.ok() || link->kind == FileKind::kLink) continue;
    }
    const auto info = fs.Stat(path);
    if (!info.ok() || !info->is_directory() || fs.Stat(JoinPath(path, kManifestName)).ok()) continue;
    FoundStep step = FoundStepAt(fs, path);
    step.of_run = true;
    if (step.step) steps.push_back(std::move(step));
  }
  std::ranges::stable_sort(steps, {}, &FoundStep::step);
  std::ranges::stable_partition(steps, [&](const FoundStep& step) { return IsLeftBehind(fs, step); });
  return steps;
}

Result<std::vector<FoundStep>> StepsToSeal(FileSystem& fs, const std::string& argument) {
  CAIRN_ASSIGN_OR_RETURN(Place place, Locate(fs, argument));
  const std::string& path = place.path;
  if (place.kind == PlaceKind::kMember)
    return NotSupported("{}: an archived step needs no seal; cairn archive verify checks it", argument);
  if (place.kind == PlaceKind::kFile)
    return NotSupported("{} is a file; name the directory that it is in", path);
  if (place.kind == PlaceKind::kStep || ParseStepDirName(LastName(CanonicalPath(path))))
    return NotSupported("{}: a step of Cairn needs no seal; cairn verify checks it", path);
  if (place.native())
    return NotSupported("{}: the steps of a run of Cairn need no seals; cairn ls lists them", path);
  if (place.kind == PlaceKind::kFileRun)
    return NotSupported(
        "{}: its steps are a file each, and a seal is for a directory; cairn verify checks {}", path,
        place.steps.back().path);
  if (place.kind == PlaceKind::kTree) {
    if (!IsCheckpoint(fs, path)) CAIRN_RETURN_IF_ERROR(RefuseRunsIn(fs, path));
    if (const auto unknown = UnknownSteps(fs, place); !unknown.empty())
      return InvalidArgument(
          "{}: {} and {} hold a checkpoint each, but Cairn does not know such steps; name one", path,
          unknown.front(), unknown.back());
  }
  return std::move(place.steps);
}

std::string CheckpointBesideSteps(FileSystem& fs, const Place& place) {
  if (!place.native_run() && !place.foreign_run()) return {};
  const auto found = RecogniseAll(fs, place.path);
  if (!found.ok() || found->size() != 1 || found->front().path != place.path) return {};
  const System& system = *found->front().system;
  const bool own = std::ranges::any_of(TrainerLayouts(), [&](const TrainerLayout& layout) {
    return layout.format == system.name && !layout.last.empty() &&
           fs.Stat(JoinPath(place.path, layout.last)).ok();
  });
  if (system.training && !own) return {};  // the run's tracker leads to a step
  return fmt::format("{}: a checkpoint ({}) lies beside its steps", place.path, system.name);
}

std::vector<Place> RunsIn(FileSystem& fs, const std::string& directory) {
  std::vector<Place> runs;
  const auto names = fs.List(directory);
  for (size_t i = 0; names.ok() && i < names->size(); ++i) {
    auto place = PlaceAt(fs, JoinPath(directory, (*names)[i]));
    if (place.ok() && (place->native_run() || place->of_node() || place->foreign_run()))
      runs.push_back(*std::move(place));
  }
  return runs;
}

Status RefuseRunsIn(FileSystem& fs, const std::string& directory) {
  const auto runs = RunsIn(fs, directory);
  if (runs.empty()) return OkStatus();
  if (runs.size() == 1) return InvalidArgument("{}: {} in it is a run; name that", directory, runs[0].path);
  return InvalidArgument("{}: {} and {} in it are runs; name one", directory, runs.front().path,
                         runs.back().path);
}

std::string KindOfName(std::string_view name) {
  std::string kind;
  for (const char c : name.substr(0, name.find("step=")))
    if (!std::isdigit(static_cast<unsigned char>(c)))
      kind += c;
    else if (!kind.ends_with('#'))
      kind += '#';
  return kind;
}

std::vector<std::string> UnknownSteps(FileSystem& fs, const Place& place) {
  const auto names = fs.List(place.path);
  if (!names.ok() || names->size() > kMostUnnamed || place.kind == PlaceKind::kForeignStep ||
      IsCheckpoint(fs, place.path))
    return {};
  std::map<std::string, std::vector<std::string>> kinds;
  for (const std::string& name : *names) {
    const std::string path = JoinPath(place.path, name);
    const auto info = fs.LinkStat(path);
    if (!info.ok() || !info->is_directory() || name.starts_with('.')) continue;
    const FoundStep step = FoundStepAt(fs, path);
    if (step.step) continue;
    const auto found = RecogniseAll(fs, path);
    if (step.sealed || (found.ok() && !found->empty())) kinds[KindOfName(name)].push_back(path);
  }
  for (auto& [kind, steps] : kinds)
    if (steps.size() > 1) return std::move(steps);
  return {};
}

}  // namespace cairn
