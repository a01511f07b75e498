// A name makes a directory a candidate, and opening it shows whether it is a step. A training may save and
// retire meanwhile, so steps are listed again if one does not open. Only deletion.h removes directories; what
// it refuses is reported and stays, and only an error of the disk ends a clean-up. Retention first decides
// from facts alone (StepsToRetire), then deletes; for each step it must find a newer healthy one first.

#include "ckpt/run/run_dir.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "ckpt/base/backoff.h"
#include "ckpt/base/posix_error.h"
#include "ckpt/io/directory_room.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/step_hold.h"
#include "ckpt/run/step_tags.h"
#include "ckpt/step/find_step.h"
#include "ckpt/step/partial_dir.h"
#include "ckpt/step/step_reader.h"

namespace cairn {
namespace {

constexpr auto kSayWaiting = std::chrono::seconds(1), kSayWaitingAgain = std::chrono::seconds(30);

constexpr uint64_t kMaxLatestBytes = 64;
constexpr uint64_t kBesidesFiles = 2;  // the directory and its mark

// A refusal is reported and is not a failure; an error of the disk is one.
Status LeaveRefused(const Status& removed, const Complain& left) {
  if (removed.ok() || IsRefusal(removed)) return removed;
  left(removed);
  return OkStatus();
}

}  // namespace

Result<std::vector<int64_t>> ListSteps(FileSystem& fs, const std::string& run_dir) {
  Result<std::vector<std::string>> names = ListAtOnce(fs, run_dir);
  if (!names.ok() && names.status().kind() == StatusKind::kNotFound) return std::vector<int64_t>{};
  if (!names.ok()) return names.status();
  std::vector<int64_t> steps;
  for (const std::string& name : *names)
    if (const auto step = ParseStepDirName(WaitsAside(*names, name) ? name.substr(0, name.find('.')) : name))
      steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<int64_t> LatestOf(FileSystem& fs, const std::string& run_dir) {
  if (run_dir.empty()) return std::nullopt;
  const Result<std::string> text = ReadSmallFile(fs, JoinPath(run_dir, kLatestName), kMaxLatestBytes);
  return text.ok() ? ParseStepDirName(text->substr(0, text->find('\n'))) : std::nullopt;
}

namespace {

std::vector<int64_t> CurrentSteps(const RunSteps& run) {
  std::vector<int64_t> steps;
  for (const StepFacts& step : run.steps)
    if (step.current()) steps.push_back(step.step);
  for (const auto& [step, why] : run.unreadable) steps.push_back(step);
  std::ranges::sort(steps);
  return steps;
}

// Steps that might seem newer than `opened`, with the reason why they are not.
void ReportDoubts(const RunSteps& run, int64_t opened, const Complain& skipped) {
  for (const StepFacts& step : run.steps)
    if (step.lineage == Lineage::kOtherRun && step.step > opened)
      skipped(InvalidArgument("step {}: of another run, {}", step.step, step.run.substr(0, 8)));
  // In a run whose steps say what they came from, one that none came from may be the end of another branch.
  if (!run.newest->descent.origin) return;
  for (const auto& [unreadable, why] : run.unreadable)
    if (unreadable < opened && std::ranges::none_of(run.steps, [&](const StepFacts& step) {
          return step.descent.origin && step.descent.origin->step == unreadable;
        }))
      skipped(why);
}

}  // namespace

Result<std::vector<int64_t>> ListCurrentSteps(FileSystem& fs, const std::string& run_dir) {
  CAIRN_ASSIGN_OR_RETURN(const RunSteps run, ReadRunSteps(fs, run_dir));
  return CurrentSteps(run);
}

Status CheckRoomForSteps(FileSystem& fs, const std::string& run_dir, const Room& step,
                         const std::vector<RoomLimit>& limits) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> there, ListSteps(fs, run_dir));
  const uint64_t count = there.empty() ? 2 : 1;
  return CheckRoom(run_dir, {count * step.bytes, count * (step.files + kBesidesFiles)}, limits)
      .WithContext(there.empty() ? "no room for a step and one that is kept" : "no room for another step");
}

Result<std::unique_ptr<StepReader>> OpenNewestStep(FileSystem& fs, const std::string& run_dir,
                                                   const std::function<void(const Status&)>& skipped) {
  CAIRN_ASSIGN_OR_RETURN(const RunSteps run, ReadRunSteps(fs, run_dir));
  std::vector<int64_t> steps = CurrentSteps(run);
  for (size_t left = steps.size(); left > 0; --left) {
    auto reader = StepReader::Open(fs, JoinPath(run_dir, StepDirName(steps[left - 1])));
    if (reader.ok()) {
      ReportDoubts(run, steps[left - 1], skipped);
      return reader;
    }
    // A training that saves meanwhile may have retired what was listed; then there is a newer step.
    CAIRN_ASSIGN_OR_RETURN(std::vector<int64_t> now, ListCurrentSteps(fs, run_dir));
    if (!now.empty() && now.back() != steps.back()) {
      steps = std::move(now);
      left = steps.size() + 1;
    } else {
      skipped(reader.status());
    }
  }
  return NotFound("{}: no committed step here", run_dir);
}

Result<std::unique_ptr<StepReader>> OpenCheckpoint(FileSystem& fs, const std::string& path,
                                                   const std::function<void(const Status&)>& skipped) {
  const std::string place = FindStep(fs, path).directory;
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(place));
  if (!info.is_directory())
    return NotSupported("{} is a file; give a step directory or a run directory", path);
  const bool is_step = fs.Stat(JoinPath(place, kManifestName)).ok();
  auto opened = is_step ? StepReader::Open(fs, path) : OpenNewestStep(fs, path, skipped);
  if (opened.ok()) RenewHold(fs, (*opened)->directory(), (*opened)->manifest());
  return opened;
}

// A command that fails removes the lock of a run directory that it made, so another file may have the name.
Result<RunLock> RunLock::Take(FileSystem& fs, const std::string& run_dir) {
  CAIRN_RETURN_IF_ERROR(CheckOutsideSteps(fs, run_dir));
  for (;;) {
    CAIRN_ASSIGN_OR_RETURN(LockFile file, LockFile::Open(fs, JoinPath(run_dir, kLockName)));
    CAIRN_ASSIGN_OR_RETURN(const bool ours, file.TryLock(FileLock::How::kExclusive));
    if (!ours)
      return AlreadyExists(
          "{}: another process writes into this run directory{}; wait until it ends, or choose another "
          "directory",
          run_dir, file.HeldBy());
    if (file.file().IsAtItsPath()) return RunLock(std::move(file));
  }
}

Result<RunLock> RunLock::Hold(FileSystem& fs, const std::string& run_dir, const Complain& left,
                              const LockWait& wait) {
  CAIRN_RETURN_IF_ERROR(MakeOutputDir(fs, run_dir));
  Backoff backoff;
  Backoff::Clock::duration say = kSayWaiting;
  Result<RunLock> lock = Take(fs, run_dir);
  while (lock.status().kind() == StatusKind::kAlreadyExists && backoff.elapsed() < wait.patience()) {
    if (const auto waited = backoff.elapsed(); waited >= say) {
      wait.waiting(lock.status(), std::chrono::ceil<std::chrono::seconds>(wait.patience() - waited));
      say = waited + kSayWaitingAgain;
    }
    backoff.Pause();
    lock = Take(fs, run_dir);
  }
  CAIRN_RETURN_IF_ERROR(lock.status());
  RemoveMark(fs, run_dir);  // of a command that was killed: the run is this training's now
  CAIRN_RETURN_IF_ERROR(CleanLeftovers(fs, run_dir, left));
  return lock;
}

Status RunLock::CheckPlace() const {
  if (file_.file().IsAtItsPath()) return OkStatus();
  return AlreadyExists(
      "{}: the run directory was renamed, removed or replaced while a training writes into it; put it back",
      file_.file().path());
}

Status RunLock::CheckHeld() const {
  CAIRN_RETURN_IF_ERROR(CheckPlace());
  return file_.CheckHolder();
}

Status CleanLeftovers(FileSystem& fs, const std::string& run_dir, const Complain& left) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(run_dir));
  std::set<std::string> leftovers;
  for (std::string name : names) {
    if (name.ends_with(kMarkSuffix)) name.resize(name.size() - kMarkSuffix.size());
    const std::optional<std::string> mark = ParseMarkedDirName(name);
    if (mark == "partial" || mark == "deleting") leftovers.insert(name);
  }
  if (leftovers.empty()) return OkStatus();
  // Names become durable first: a directory that was renamed just before a kill may have its old name again
  // after a power loss, and must then have all its files.
  CAIRN_RETURN_IF_ERROR(fs.SyncDir(run_dir));
  for (const std::string& name : leftovers)
    CAIRN_RETURN_IF_ERROR(LeaveRefused(RemoveMarked(fs, JoinPath(run_dir, name), LocksHeld::kRun), left));
  return OkStatus();
}

namespace {

// The newer one of two steps with the same loss is better: it has seen more data.
void KeepBest(const std::vector<StepFacts>& steps, int64_t count, std::set<int64_t>& keep) {
  std::vector<std::pair<double, int64_t>> best;
  for (const StepFacts& step : steps)
    if (step.validation_loss && std::isfinite(*step.validation_loss))
      best.emplace_back(*step.validation_loss, -step.step);
  std::ranges::sort(best);
  for (size_t i = 0; i < best.size() && static_cast<int64_t>(i) < count; ++i) keep.insert(-best[i].second);
}

// `steps` are healthy; requires at least one.
std::set<int64_t> KeptByRules(const std::vector<StepFacts>& steps, const RetentionPolicy& policy) {
  const auto passes = [](int64_t every, int64_t before, int64_t now) {
    return every > 0 && now / every > before / every;
  };
  std::set<int64_t> keep;
  for (size_t i = 0; i < steps.size(); ++i) {
    const StepFacts before = i == 0 ? StepFacts{} : steps[i - 1];
    if (static_cast<int64_t>(steps.size() - i) <= policy.keep_last ||
        (policy.keep_every > 0 && steps[i].step % policy.keep_every == 0) ||
        passes(policy.keep_tokens, before.tokens, steps[i].tokens) ||
        passes(policy.keep_epochs, before.epoch, steps[i].epoch))
      keep.insert(steps[i].step);
  }
  KeepBest(steps, policy.keep_best, keep);
  return keep;
}

bool InNewestBranch(const RunSteps& run, const StepFacts& step) {
  return step.current() && step.commit().branch() == run.newest->branch();
}

// Whether steps of earlier branches may go.
bool IsSettled(const RunSteps& run) {
  return !run.newest || run.newest->branch() == 0 ||
         std::ranges::count_if(run.steps, [&](const StepFacts& step) {
           return step.unhealthy.empty() && InNewestBranch(run, step);
         }) > 1;
}

}  // namespace

std::vector<int64_t> StepsToRetire(const RunSteps& run, const RetentionPolicy& policy) {
  std::vector<StepFacts> healthy;
  for (const StepFacts& step : run.steps)
    if (step.current() && step.unhealthy.empty()) healthy.push_back(step);
  if (!policy.enabled() || healthy.empty()) return {};
  std::set<int64_t> keep = KeptByRules(healthy, policy);
  keep.insert(healthy.back().step);
  const bool unconfirmed = healthy.back().step == run.newest->step;
  if (unconfirmed && healthy.size() > 1) keep.insert(healthy[healthy.size() - 2].step);
  const bool settled = IsSettled(run);
  std::vector<int64_t> retire;
  for (const StepFacts& step : run.steps) {
    const bool goes = step.lineage == Lineage::kSuperseded ||
                      (step.current() && step.step <= healthy.back().step && !keep.contains(step.step));
    if (goes && (settled || InNewestBranch(run, step))) retire.push_back(step.step);
  }
  return retire;
}

Status RetireStep(FileSystem& fs, const std::string& run_dir, const std::string& name,
                  const std::string& nonce, Shards shards, const std::string& run) {
  Digest digest{};
  CAIRN_ASSIGN_OR_RETURN(const Manifest step, ReadManifest(fs, JoinPath(run_dir, name), &digest));
  CAIRN_ASSIGN_OR_RETURN(const HealthySuccessor successor,
                         HealthySuccessor::Find(fs, run_dir, BranchedStep::Of(step), shards));
  return DeleteStep(
      fs,
      {.run_dir = run_dir, .name = name, .manifest = digest, .nonce = nonce, .shards = shards, .run = run},
      successor);
}

namespace {

Result<std::vector<std::string>> SupersededNames(FileSystem& fs, const std::string& run_dir) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<std::string> names, fs.List(run_dir));
  std::erase_if(names, [](const std::string& name) { return ParseMarkedDirName(name) != "superseded"; });
  return names;
}

// Tagged steps stay. Steps of other runs than `run` stay: one line for all of them, and if there are `others`
// that no rule is about.
Status RetireOwn(FileSystem& fs, const std::string& run_dir, const std::vector<std::string>& names,
                 const std::string& nonce, Shards shards, const Complain& left, const std::string& run = {},
                 bool others = false) {
  const Result<std::vector<StepTag>> tags = ReadTags(fs, run_dir);
  if (!tags.ok()) {
    left(tags.status());
    return OkStatus();
  }
  for (const std::string& name : names) {
    Digest digest{};
    const Result<Manifest> step = ReadManifest(fs, JoinPath(run_dir, name), &digest);
    if (step.ok() && !TagsOf(*tags, ToHex(digest)).empty()) continue;
    if (!run.empty() && step.ok() && step->run != run)
      others = true;
    else
      CAIRN_RETURN_IF_ERROR(LeaveRefused(RetireStep(fs, run_dir, name, nonce, shards, run), left));
  }
  if (others)
    left(InvalidArgument("{}: steps of other runs stay, because a run removes only its own", run_dir));
  return OkStatus();
}

}  // namespace

Status RemoveSuperseded(FileSystem& fs, const std::string& run_dir, const std::string& nonce, Shards shards,
                        const Complain& left) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, SupersededNames(fs, run_dir));
  return RetireOwn(fs, run_dir, names, nonce, shards, left);
}

Status ApplyRetention(FileSystem& fs, const std::string& run_dir, const RetentionPolicy& policy,
                      const std::string& nonce, const Complain& left) {
  if (!policy.enabled()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const RunSteps run, ReadRunSteps(fs, run_dir));
  std::vector<std::string> names;
  for (const int64_t step : StepsToRetire(run, policy)) names.push_back(StepDirName(step));
  if (IsSettled(run)) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> superseded, SupersededNames(fs, run_dir));
    names.insert(names.end(), superseded.begin(), superseded.end());
  }
  const bool others = std::ranges::count(run.steps, Lineage::kOtherRun, &StepFacts::lineage) > 0;
  return RetireOwn(fs, run_dir, names, nonce, Shards::kHere, left, policy.run, others);
}

}  // namespace cairn
