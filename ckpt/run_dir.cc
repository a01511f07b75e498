#include "ckpt/run_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "ckpt/layout.h"
#include "ckpt/step_hold.h"

namespace cairn {

Result<std::vector<int64_t>> ListSteps(FileSystem& fs, const std::string& run_dir) {
  Result<std::vector<std::string>> names = fs.List(run_dir);
  if (!names.ok() && names.status().kind() == StatusKind::kNotFound) return std::vector<int64_t>{};
  if (!names.ok()) return names.status();
  std::vector<int64_t> steps;
  for (const std::string& name : *names)
    if (const auto step = ParseStepDirName(name)) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

Result<std::unique_ptr<StepReader>> OpenNewestStep(FileSystem& fs, const std::string& run_dir,
                                                   const std::function<void(const Status&)>& skipped) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<int64_t> steps, ListSteps(fs, run_dir));
  for (size_t left = steps.size(); left > 0; --left) {
    auto reader = StepReader::Open(fs, JoinPath(run_dir, StepDirName(steps[left - 1])));
    if (reader.ok()) return reader;
    // A training that saves meanwhile may have retired what was listed; then there is a newer step.
    CAIRN_ASSIGN_OR_RETURN(std::vector<int64_t> now, ListSteps(fs, run_dir));
    if (!now.empty() && now.back() > steps.back()) {
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
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  if (!info.is_directory())
    return NotSupported("{} is a file; give a step directory or a run directory of Cairn", path);
  if (fs.Stat(JoinPath(path, kManifestName)).ok()) return StepReader::Open(fs, path);
  return OpenNewestStep(fs, path, skipped);
}

Result<RunLock> RunLock::Take(const std::string& run_dir) {
  const std::string path = JoinPath(run_dir, kLockName);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return IoError("open {}: {}", path, strerror(errno));
  RunLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK)
    return AlreadyExists(
        "{}: another training writes into this run directory; stop it or choose another --save", run_dir);
  return IoError("lock {}: {}", path, strerror(errno));
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

Status CleanLeftovers(FileSystem& fs, const std::string& run_dir) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<std::string> names, fs.List(run_dir));
  std::erase_if(names, [](const std::string& name) {
    const std::optional<std::string> mark = ParseMarkedDirName(name);
    return mark != "partial" && mark != "deleting" && !name.starts_with(LatestTempName(""));
  });
  if (names.empty()) return OkStatus();
  // The names first: what a process renamed just before it was killed may bear its old name again after a
  // power loss, and must then have all its files.
  CAIRN_RETURN_IF_ERROR(fs.SyncDir(run_dir));
  for (const std::string& name : names) {
    const std::string path = JoinPath(run_dir, name);
    CAIRN_RETURN_IF_ERROR(ParseMarkedDirName(name) ? RemoveTree(fs, path) : fs.RemoveFile(path));
  }
  return OkStatus();
}

std::vector<int64_t> StepsToRetire(const std::vector<StepFacts>& steps, const RetentionPolicy& policy) {
  if (!policy.enabled() || steps.empty()) return {};
  std::set<int64_t> keep{steps.back().step};
  for (size_t i = 0; i < steps.size(); ++i) {
    if (static_cast<int64_t>(steps.size() - i) <= policy.keep_last) keep.insert(steps[i].step);
    if (policy.keep_every > 0 && steps[i].step % policy.keep_every == 0) keep.insert(steps[i].step);
    const int64_t before = i == 0 ? 0 : steps[i - 1].tokens;
    if (policy.keep_tokens > 0 && steps[i].tokens / policy.keep_tokens > before / policy.keep_tokens)
      keep.insert(steps[i].step);
  }
  std::vector<int64_t> retire;
  for (const StepFacts& step : steps)
    if (!keep.contains(step.step)) retire.push_back(step.step);
  return retire;
}

// The new name comes first and is durable, so that a half-removed step is never taken for a whole one.
Status RetireStep(FileSystem& fs, const std::string& run_dir, int64_t step, const std::string& nonce) {
  const std::string doomed = JoinPath(run_dir, DeletingDirName(step, nonce));
  CAIRN_RETURN_IF_ERROR(fs.Rename(JoinPath(run_dir, StepDirName(step)), doomed));
  CAIRN_RETURN_IF_ERROR(fs.SyncDir(run_dir));
  return RemoveTree(fs, doomed);
}

Status RemoveSuperseded(FileSystem& fs, const std::string& run_dir) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(run_dir));
  for (const std::string& name : names)
    if (ParseMarkedDirName(name) == "superseded")
      CAIRN_RETURN_IF_ERROR(RemoveTree(fs, JoinPath(run_dir, name)));
  return OkStatus();
}

Status ApplyRetention(FileSystem& fs, const std::string& run_dir, const RetentionPolicy& policy,
                      const std::string& nonce) {
  if (!policy.enabled()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(fs, run_dir));
  std::vector<StepFacts> facts;
  for (int64_t step : steps) {
    const auto text =
        ReadSmallFile(fs, JoinPath(JoinPath(run_dir, StepDirName(step)), kManifestName), kMaxManifestBytes);
    if (!text.ok()) continue;
    const Result<Manifest> manifest = DecodeManifest(*text);
    if (manifest.ok()) facts.push_back({step, IntField(manifest->state, "consumed_tokens")});
  }
  for (int64_t step : StepsToRetire(facts, policy)) {
    CAIRN_ASSIGN_OR_RETURN(const std::string holder, HolderOf(fs, run_dir, step));
    if (holder.empty()) CAIRN_RETURN_IF_ERROR(RetireStep(fs, run_dir, step, nonce));
  }
  return RemoveSuperseded(fs, run_dir);
}

}  // namespace cairn
