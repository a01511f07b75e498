// Publishing is one rename. A step that is already there changes places with the new one, so that its name
// always has a whole step.

#include "ckpt/run/committer.h"

#include <utility>

#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

// `latest` names the newest step for people and scripts. Losing it costs nothing: loaders scan.
Status WriteLatest(FileSystem& fs, const std::string& run_dir, int64_t step, const std::string& nonce) {
  CAIRN_RETURN_IF_ERROR(WriteAndRename(fs, JoinPath(run_dir, LatestTempName(nonce)),
                                       JoinPath(run_dir, kLatestName), StepDirName(step) + "\n"));
  return fs.SyncDir(run_dir);
}

// The old step must not bear the partial name for even a moment: before the exchange is durable, a cleaner
// would remove files from under the name that comes back. So the new one leaves that name first.
Status ExchangeStep(FileSystem& fs, const std::string& partial, const std::string& aside,
                    const std::string& step_dir) {
  CAIRN_RETURN_IF_ERROR(fs.Rename(partial, aside));
  const Status exchanged = fs.Exchange(aside, step_dir);
  if (!exchanged.ok()) (void)fs.Rename(aside, partial);
  return exchanged;
}

}  // namespace

Committer::Committer(FileSystem& fs, std::string run_dir, int64_t step, std::string nonce,
                     const RunLock* lock)
    : fs_(&fs),
      run_dir_(std::move(run_dir)),
      step_(step),
      nonce_(std::move(nonce)),
      partial_path_(JoinPath(run_dir_, PartialDirName(step, nonce_))),
      step_dir_(JoinPath(run_dir_, StepDirName(step))),
      lock_(lock) {}

Result<Committer> Committer::Create(FileSystem& fs, const NewStep& what) {
  Committer made(fs, what.run_dir, what.step, what.nonce);
  CAIRN_RETURN_IF_ERROR(made.CheckNew());
  if (!what.commit.run.empty()) CAIRN_RETURN_IF_ERROR(CheckSameRun(fs, what.run_dir, what.commit));
  const bool adopts = what.resume && fs.Stat(made.partial_path_).ok();
  CAIRN_RETURN_IF_ERROR(CheckOutsideSteps(fs, what.run_dir));
  if (!fs.Stat(what.run_dir).ok()) {
    CAIRN_ASSIGN_OR_RETURN(made.run_dir_made_, PartialDir::Make(fs, what.run_dir));
  }
  // The lock comes first: what is in the directory may be another process's until this one has it.
  Result<RunLock> lock = RunLock::Take(what.run_dir);
  if (!lock.ok() && made.run_dir_made_) made.run_dir_made_->Keep();  // it is another's now
  CAIRN_RETURN_IF_ERROR(lock.status());
  made.own_lock_ = std::make_unique<RunLock>(std::move(lock).value());
  made.lock_ = made.own_lock_.get();
  if (!what.resume) CAIRN_RETURN_IF_ERROR(CleanLeftovers(fs, what.run_dir));  // which may free space
  if (!adopts) CAIRN_RETURN_IF_ERROR(CheckFreeSpace(fs, what.run_dir, what.need_bytes));
  if (adopts) {
    made.partial_dir_ = PartialDir::Adopt(fs, made.partial_path_);
    CAIRN_RETURN_IF_ERROR(
        made.RemoveFiles([](std::string_view name) { return name == kIndexName || name == kManifestName; }));
  } else {
    CAIRN_ASSIGN_OR_RETURN(made.partial_dir_, PartialDir::Make(fs, made.partial_path_));
  }
  return made;
}

Status Committer::CheckNew() const {
  if (!fs_->Stat(step_dir_).ok()) return OkStatus();
  return AlreadyExists("{} is there already and is never overwritten; choose another directory", step_dir_);
}

Status Committer::RemoveFiles(const std::function<bool(std::string_view name)>& chosen) const {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->List(partial_path_));
  Status first;
  for (const std::string& name : names) {
    if (!chosen(name)) continue;
    const Status removed = RemoveIfThere(*fs_, JoinPath(partial_path_, name));
    if (first.ok()) first = removed;
  }
  return first;
}

Result<std::unique_ptr<StepReader>> Committer::ReadBack(const StepSeal& seal) const {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<StepReader> written, StepReader::Open(*fs_, partial_path_));
  if (EncodeManifest(written->manifest()) != seal.manifest)
    return Corrupt("{}: the manifest read back is not what was written; check the disk and try again",
                   partial_path_);
  return written;
}

Status Committer::Publish() {
  if (lock_ != nullptr) CAIRN_RETURN_IF_ERROR(lock_->CheckPlace());
  if (fs_->Stat(step_dir_).ok())
    CAIRN_RETURN_IF_ERROR(
        ExchangeStep(*fs_, partial_path_, JoinPath(run_dir_, SupersededDirName(step_, nonce_)), step_dir_));
  else
    CAIRN_RETURN_IF_ERROR(fs_->Rename(partial_path_, step_dir_));
  CAIRN_RETURN_IF_ERROR(fs_->SyncDir(run_dir_));
  Keep();
  (void)WriteLatest(*fs_, run_dir_, step_,
                    nonce_);  // a missing hint must not make a committed step a failure
  return OkStatus();
}

void Committer::Abandon() { (void)RemoveTree(*fs_, partial_path_); }

void Committer::Keep() {
  if (partial_dir_) partial_dir_->Keep();
  if (run_dir_made_) run_dir_made_->Keep();
}

}  // namespace cairn
