#include "tools/serve/held_runs.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "ckpt/base/canonical_path.h"
#include "ckpt/job/job_save.h"
#include "ckpt/run/local_branch.h"

namespace cairn {

void ReportLine(const std::string& line) { std::fputs(fmt::format("cairn: {}\n", line).c_str(), stderr); }

std::optional<BranchedStep> HeldRuns::Run::newest() {
  const std::lock_guard lock(mutex_);
  return newest_;
}
void HeldRuns::Run::Committed(std::optional<BranchedStep> step) {
  const std::lock_guard lock(mutex_);
  newest_ = std::move(step);
}

Status HeldRuns::Hold(FileSystem& fs, const std::string& run_dir, const Patience& patience) {
  const std::lock_guard lock(mutex_);
  if (const auto held = runs_.find(CanonicalPath(run_dir)); held != runs_.end()) {
    if (held->second->lock.CheckPlace().ok()) return held->second->lock.CheckHeld();
    runs_.erase(held);  // removed or moved away between two saves: the new directory is another run
  }
  const auto waiting = [](const Status& held, std::chrono::seconds more) {
    ReportLine(fmt::format("a save waits, for up to {} s more: {}", more.count(), held.message()));
  };
  CAIRN_ASSIGN_OR_RETURN(HeldRun ours, HoldRun(fs, run_dir, {patience, waiting}, ReportLine));
  CAIRN_ASSIGN_OR_RETURN(RunSteps steps, ReadRunSteps(fs, run_dir));
  const auto run = std::make_shared<Run>(fs, run_dir, std::move(ours.lock), std::move(steps.newest));
  CAIRN_ASSIGN_OR_RETURN(const auto note, ReadLocalNote(fs, run_dir));
  run->unseen_branch = BranchOf(note);
  if (auto limits = LimitsAt(fs, run_dir); limits.ok()) run->limits = *std::move(limits);
  runs_[CanonicalPath(run_dir)] = run;
  return OkStatus();
}

Result<std::shared_ptr<HeldRuns::Run>> HeldRuns::At(const std::string& run_dir) {
  const std::lock_guard lock(mutex_);
  const auto held = runs_.find(CanonicalPath(run_dir));
  if (held == runs_.end()) return Aborted("{} leads to a different directory since the save began", run_dir);
  return held->second;
}

Status HeldRuns::GiveUpLocal(FileSystem& fs, const std::string& run_dir, int64_t step, const std::string& why,
                             const Patience& patience) {
  CAIRN_RETURN_IF_ERROR(fs.Stat(run_dir).status());  // Hold() would make it
  CAIRN_RETURN_IF_ERROR(Hold(fs, run_dir, patience));
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Run> run, At(run_dir));
  CAIRN_ASSIGN_OR_RETURN(RunSteps steps, ReadRunSteps(fs, run_dir));
  CAIRN_ASSIGN_OR_RETURN(run->unseen_branch, GiveUpLocalSteps(fs, run_dir, steps.newest));
  run->Committed(std::move(steps.newest));
  run->record.GaveUpLocal(step, why);
  return OkStatus();
}

void HeldRuns::RecordEnd(const std::string& how, const std::string& why) {
  const std::lock_guard lock(mutex_);
  for (const auto& [path, run] : runs_)
    if (run->lock.CheckPlace().ok()) run->record.End(how, why);
}

void HeldRuns::KeepFailed(Committer save) {
  const std::lock_guard lock(mutex_);
  failed_.push_back(std::move(save));
}
void HeldRuns::RemoveFailed() {
  const std::lock_guard lock(mutex_);
  for (Committer& save : std::exchange(failed_, {})) save.Abandon();
}

}  // namespace cairn
