#include "runtime/saving/training_run.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "ckpt/base/this_process.h"
#include "ckpt/job/job_save.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/run_identity.h"
#include "runtime/control/console.h"

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

// Surviving ranks of the previous start wait ten minutes for a dead node, and NFS keeps the locks of a dead
// host for a minute and a half.
constexpr seconds kPatienceOfRequeued{900};

seconds PatienceOf(const TrainConfig& config) {
  if (config.wait_for_lock >= 0) return seconds(config.wait_for_lock);
  return SlurmRestarts(std::getenv) > 0 ? kPatienceOfRequeued : seconds(0);
}

}  // namespace

Result<TrainingRun> OpenTrainingRun(FileSystem& fs, const TrainConfig& config, ControlPlane& control) {
  TrainingRun opened;
  const auto deadline = Clock::now() + PatienceOf(config);
  const auto waiting = [&](const Status& held, seconds) {
    Say(fmt::format("waiting, for up to {} s more: {}",
                    std::chrono::ceil<seconds>(deadline - Clock::now()).count(), held.message()));
  };
  // The other ranks wait only as long as for any message, so rank 0 answers "" in between.
  const auto longest = std::max(seconds(1), seconds(static_cast<int64_t>(control.timeout_seconds() / 4)));
  const auto open = [&]() -> Result<std::string> {
    opened.run = NewRunId();
    const auto start = Clock::now();
    const auto round = std::clamp(std::chrono::ceil<seconds>(deadline - start), seconds(0), longest);
    if (!config.save.empty()) {
      Result<HeldRun> held = HoldRun(fs, config.save, {[=] { return round; }, waiting}, Say);
      const bool waited = held.status().kind() == StatusKind::kAlreadyExists;
      if (waited && Clock::now() - start >= round && Clock::now() < deadline) return std::string();
      CAIRN_RETURN_IF_ERROR(held.status());
      opened.lock = std::move(held->lock);
      opened.run = std::move(held->run);
    }
    return opened.run + NewRunId().substr(0, 16);
  };
  std::string names;
  while (names.empty()) {
    CAIRN_ASSIGN_OR_RETURN(names, FromRoot(control, "run directory", open));
  }
  opened.run = names.substr(0, 32);
  opened.session = names.substr(32);
  return opened;
}

std::vector<BesideFile> FindTokenizer(FileSystem& fs, const CheckpointerOptions& options) {
  const TrainConfig& config = options.config;
  std::vector<std::string> places;
  for (const std::string& place : {config.save, config.load}) {
    if (place.empty()) continue;
    const Result<std::vector<int64_t>> steps = ListCurrentSteps(fs, place);
    if (steps.ok())
      for (auto step = steps->rbegin(); step != steps->rend(); ++step)
        places.push_back(JoinPath(place, StepDirName(*step)));
    places.push_back(place);
  }
  if (options.tokenizer_files.empty() && config.data_path.size() == 1)
    places.push_back(config.data_path[0] + ".tokenizer");
  for (const std::string& place : places) {
    if (!fs.Stat(place).ok()) continue;
    const Result<FileCopies> files = TokenizerOf(fs, place);
    if (files.ok() && !HasTokenizer(*files)) continue;
    Result<std::vector<BesideFile>> read = files.ok() ? ReadCopies(*files) : files.status();
    if (read.ok()) return *std::move(read);
    Say(fmt::format("steps are saved without a tokenizer: {}", read.status().message()));
    return {};
  }
  std::vector<BesideFile> files;
  for (const auto& [name, bytes] : options.tokenizer_files) files.push_back({name, bytes});
  return files;
}

}  // namespace cairn
