#include "runtime/saving/step_model.h"

#include "ckpt/run/run_dir.h"

namespace cairn {

std::optional<StepModel> FindStepModel(const std::string& save_dir, const std::string& load) {
  for (const std::string& place : {save_dir, load}) {
    if (place.empty()) continue;
    const auto step = OpenCheckpoint(FileSystem::Posix(), place, [](const Status&) {});
    if (step.ok())
      return StepModel{(*step)->directory(), (*step)->manifest().model, (*step)->catalog().Parameters()};
  }
  return std::nullopt;
}

}  // namespace cairn
