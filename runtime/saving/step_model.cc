#include "runtime/saving/step_model.h"

#include <ranges>

#include "ckpt/model/layout.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/step/step_reader.h"

namespace cairn {
namespace {

std::optional<StepModel> ModelOfStep(FileSystem& fs, const std::string& directory) {
  const auto step = StepReader::Open(fs, directory);
  if (!step.ok()) return std::nullopt;
  return StepModel{directory, (*step)->manifest().model, (*step)->catalog().Parameters()};
}

std::optional<StepModel> ModelOfRun(FileSystem& fs, const std::string& run_dir) {
  const Result<std::vector<int64_t>> steps = ListCurrentSteps(fs, run_dir);
  if (!steps.ok()) return std::nullopt;
  for (const int64_t step : *steps | std::views::reverse)
    if (auto found = ModelOfStep(fs, JoinPath(run_dir, StepDirName(step)))) return found;
  return std::nullopt;
}

}  // namespace

std::optional<StepModel> FindStepModel(const std::string& save_dir, const std::string& load) {
  FileSystem& fs = FileSystem::Posix();
  if (!save_dir.empty())
    if (auto found = ModelOfRun(fs, save_dir)) return found;
  if (load.empty()) return std::nullopt;
  if (fs.Stat(JoinPath(load, kManifestName)).ok()) return ModelOfStep(fs, load);
  return ModelOfRun(fs, load);
}

}  // namespace cairn
