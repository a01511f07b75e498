#include "runtime/saving/training_run.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "ckpt/base/this_process.h"
#include "ckpt/io/mount_points.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/run_identity.h"
#include "runtime/control/console.h"
#include "runtime/control/rank_message.h"

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

Status Open(FileSystem& fs, const std::string& run_dir, const LockWait& wait, TrainingRun& opened) {
  const auto left = [](const Status& why) { Say("leftover not removed: " + why.message()); };
  CAIRN_ASSIGN_OR_RETURN(opened.lock, RunLock::Hold(fs, run_dir, left, wait));
  if (const std::string why = LocalLocksWarning(run_dir); !why.empty()) Say("warning: " + why);
  CAIRN_ASSIGN_OR_RETURN(const OwnedRun owned, OwnRun(fs, run_dir));
  if (owned.before.ownership == Ownership::kCopied)
    Say(fmt::format("{} is a copy of {}: from now on it is a separate run, {}", run_dir, owned.before.owner,
                    owned.run.substr(0, 8)));
  opened.run = owned.run;
  return OkStatus();
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
    const Status status =
        config.save.empty() ? OkStatus() : Open(fs, config.save, {[=] { return round; }, waiting}, opened);
    const bool waited = !opened.lock && status.kind() == StatusKind::kAlreadyExists;
    if (waited && Clock::now() - start >= round && Clock::now() < deadline) return std::string();
    CAIRN_RETURN_IF_ERROR(status);
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
