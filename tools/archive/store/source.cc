// An argument is interpreted in this order: a step, if it has a manifest; an iteration of Megatron-Core that
// cairn.megatron saved, as one tree with the step in it; the committed steps of a run directory; the steps of
// another system's run (foreign_run.h); else the directory itself, as one tree. A directory that looks like a
// run of Cairn without a committed step is an error: a save that was not finished must not be archived as
// mere files.

#include "tools/archive/store/source.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>

#include "ckpt/base/canonical_path.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/replace_by_renames.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/run/step_tags.h"
#include "ckpt/step/step_reader.h"
#include "convert/formats/megatron/megatron_dist.h"
#include "convert/formats/systems.h"
#include "tools/seal/foreign_run.h"
#include "tools/seal/seal_record.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

constexpr size_t kMaxNameBytes = 180;  // a file name has 255; steps, digits and suffixes follow

// Valid as a file name and in RUN@STEP. Names may be equal: the content distinguishes members.
std::string PlainName(std::string_view of) {
  std::string name(of);
  name.resize(std::min(name.size(), kMaxNameBytes));
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) &&
        std::string_view("._-").find(c) == std::string_view::npos)
      c = '_';
  return IsPlainFileName(name) ? name : "run";
}

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

Status Expand(FileSystem& fs, const std::string& given, std::vector<ArchiveSource>& sources) {
  CAIRN_ASSIGN_OR_RETURN(const std::string argument, StepPath(fs, given));
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(argument));
  if (!info.is_directory()) return NotSupported("{} is a file; name the directory that it is in", argument);
  if (fs.Stat(JoinPath(argument, kManifestName)).ok()) {
    sources.push_back({.path = argument});
    return OkStatus();
  }
  if (IsSavedByCairnMegatron(fs, argument)) {
    sources.push_back({.path = argument, .native = false});
    return OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(fs, argument));
  for (int64_t step : steps)
    sources.push_back({.path = JoinPath(argument, StepDirName(step)), .of_run = true});
  if (!steps.empty()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(argument));
  if (names.empty() || IsOfCairn(names) || ParseStepDirName(LastName(CanonicalPath(argument))))
    return NotFound("{}: neither a committed step nor a run directory with one", argument);
  if (IsForeignStep(fs, argument))
    sources.push_back({.path = argument, .native = false});
  else
    for (const ForeignStep& step : ListRunSteps(fs, argument))
      sources.push_back({.path = step.path, .native = false, .of_run = true});
  return OkStatus();
}

}  // namespace

Result<std::string> StepPath(FileSystem& fs, const std::string& argument) {
  if (std::string place = FindStep(fs, argument).directory; fs.Stat(place).ok()) return place;
  if (const size_t at = argument.rfind('@'); at != argument.npos && at > 0) {
    const std::string run_dir = argument.substr(0, at);
    const std::optional<int64_t> step = ParseStepNumber(std::string_view(argument).substr(at + 1));
    if (const std::string name = argument.substr(at + 1); IsTagName(name) && fs.Stat(run_dir).ok())
      return StepOfTag(fs, run_dir, name);
    if (const auto steps = StepsIn(fs, run_dir); step && !steps.empty()) {
      if (const auto found = steps.find(*step); found != steps.end()) return found->second;
      return NotFound("{}: no step {} in it; it has {}", run_dir, *step, ListOfSteps(steps));
    }
  }
  const std::string parent = stdfs::path(argument).parent_path().string();
  if (const auto steps = StepsIn(fs, parent.empty() ? "." : parent); !parent.empty() && !steps.empty())
    return NotFound("{}: no such step; {} has {}", argument, parent, ListOfSteps(steps));
  return argument;
}

Result<std::vector<ArchiveSource>> ExpandSources(FileSystem& fs, const std::vector<std::string>& arguments) {
  std::vector<ArchiveSource> sources;
  for (const std::string& argument : arguments) CAIRN_RETURN_IF_ERROR(Expand(fs, argument, sources));
  return sources;
}

std::string WhyPassedOver(FileSystem& fs, const ArchiveSource& source) {
  if (source.native || HasSeal(fs, source.path)) return "";
  const auto step = ForeignStepOf(fs, source.path);
  const auto files = ListStepFiles(fs, source.path);
  if (!step || !files.ok()) return "";
  const std::string why =
      WhyUnfinished(fs, {source.path, step}, *files, /*strict=*/source.of_run, std::time(nullptr), 0);
  return why.empty() ? "" : fmt::format("{} is being written: {}", source.path, why);
}

ArchiveRecord DescribeSource(const StepReader& step) {
  const std::string canonical = CanonicalPath(step.directory());
  ArchiveRecord record = RecordOf(step.manifest(), PlainName(LastName(ParentDir(canonical))));
  record.source = canonical;
  return record;
}

ArchiveRecord NameTree(const std::string& directory) {
  const std::string canonical = CanonicalPath(directory);
  const std::string name = PlainName(LastName(canonical));
  const auto step = ForeignStepOf(FileSystem::Posix(), canonical);
  const std::string run = step ? PlainName(LastName(ParentDir(canonical))) : name;
  ArchiveRecord record{.name = run, .step = step.value_or(0), .directory = JoinPath(run, name)};
  record.form = Form::kFiles;
  record.source = canonical;
  return record;
}

Status CheckManifestUnchanged(FileSystem& fs, const std::string& step_dir, std::string_view digest) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text,
                         ReadSmallFile(fs, JoinPath(step_dir, kManifestName), kMaxManifestBytes));
  if (ToHex(DigestOf(text)) != digest) return Corrupt("{}: saved again meanwhile; run this again", step_dir);
  return OkStatus();
}

}  // namespace cairn
