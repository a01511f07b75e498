#include "tools/check/verify_targets.h"

#include <fmt/ranges.h>

#include "ckpt/base/canonical_path.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/replace_by_renames.h"
#include "ckpt/run/run_dir.h"
#include "tools/seal/foreign_run.h"
#include "tools/seal/seal_record.h"
#include "tools/source/open_ckpt.h"

namespace cairn {
namespace {

// What to type instead, if the directory contains runs of Cairn, as a Trainer's unsealed checkpoint does.
std::string RunsInside(FileSystem& fs, const std::string& path) {
  const auto names = fs.List(path);
  if (!names.ok()) return "";
  std::vector<std::string> runs;
  for (const std::string& name : *names) {
    const auto steps = ListSteps(fs, JoinPath(path, name));
    if (steps.ok() && !steps->empty()) runs.push_back(JoinPath(path, name));
  }
  if (runs.empty()) return "";
  return fmt::format("; seal it first (cairn seal {}), or verify the runs in it: {}", path,
                     fmt::join(runs, " "));
}

}  // namespace

Result<std::vector<std::string>> StepsToCheck(FileSystem& fs, const std::string& path, bool all) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(FindStep(fs, path).directory));
  if (!info.is_directory())
    return NotSupported("{} is a file; give a step directory or a run directory of Cairn", path);
  if (fs.Stat(JoinPath(path, kManifestName)).ok() || ParseStepDirName(LastName(path)))
    return std::vector{path};
  CAIRN_ASSIGN_OR_RETURN(std::vector<int64_t> steps, all ? ListSteps(fs, path) : ListCurrentSteps(fs, path));
  if (steps.empty()) {
    const auto names = fs.List(path);
    const Status why = names.ok() && IsOfCairn(*names) ? OkStatus() : Recognise(fs, path).status();
    return NotFound("{}{}", why.ok() ? path + ": no committed step here" : why.message(),
                    RunsInside(fs, path));
  }
  if (!all) steps.erase(steps.begin(), steps.end() - 1);
  std::vector<std::string> directories;
  for (int64_t step : steps) directories.push_back(FindStep(fs, JoinPath(path, StepDirName(step))).directory);
  return directories;
}

// A run's tracker says which step is the newest, but a seal says more. A directory with steps of Cairn is a
// run of Cairn, whatever else lies in it.
std::vector<std::string> CheckpointsAt(FileSystem& fs, const std::string& path, bool all) {
  const auto native = ListSteps(fs, path);
  if ((native.ok() && !native->empty()) || IsForeignStep(fs, path)) return {path};
  const std::vector<ForeignStep> steps = ListRunSteps(fs, path);
  const std::string& newest = steps.back().path;
  if (!all) return {HasSeal(fs, newest) || !IsForeign(path) || !IsCheckpoint(fs, path) ? newest : path};
  std::vector<std::string> checkpoints;
  for (const ForeignStep& step : steps) checkpoints.push_back(step.path);
  return checkpoints;
}

}  // namespace cairn
