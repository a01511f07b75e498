// Publishing is one rename. A step that already exists changes places with the new one, so that its name
// always has a whole step; on a file system that cannot exchange two names, its name or the one aside.

#include "ckpt/run/committer.h"

#include <utility>

#include "ckpt/io/fresh_names.h"
#include "ckpt/io/replace_file.h"
#include "ckpt/model/layout.h"
#include "ckpt/step/replace_by_renames.h"
#include "ckpt/step/step_reader.h"

namespace cairn {
namespace {

// `latest` names the newest step for people and scripts. Its loss is harmless: loaders scan.
Status WriteLatest(FileSystem& fs, const std::string& run_dir, int64_t step, const std::string& nonce) {
  CAIRN_RETURN_IF_ERROR(WriteAndRename(fs, JoinPath(run_dir, LatestTempName(nonce)),
                                       JoinPath(run_dir, kLatestName), StepDirName(step) + "\n"));
  return fs.SyncDir(run_dir);
}

// The old step must not bear the partial name for even a moment: before the exchange is durable, a cleaner
// would remove files from under the name that comes back. So the new one leaves that name first.
Status ExchangeStep(FileSystem& fs, const std::string& partial, const std::string& aside,
                    const std::string& step_dir) {
  CAIRN_RETURN_IF_ERROR(fs.RenameNew(partial, aside));
  const Status exchanged = fs.Exchange(aside, step_dir);
  if (exchanged.ok()) return exchanged;
  const Status back = fs.RenameNew(aside, partial);
  if (exchanged.kind() != StatusKind::kNotSupported) return exchanged;
  CAIRN_RETURN_IF_ERROR(back);
  return ReplaceByRenames(fs, partial, step_dir, aside);
}

}  // namespace

Committer::Committer(FileSystem& fs, std::string run_dir, int64_t step, std::string nonce)
    : fs_(&fs),
      run_dir_(std::move(run_dir)),
      step_(step),
      nonce_(std::move(nonce)),
      partial_path_(JoinPath(run_dir_, PartialDirName(step, nonce_))),
      step_dir_(JoinPath(run_dir_, StepDirName(step))) {}

Result<Committer> Committer::Create(FileSystem& fs, const NewStep& what) {
  Committer made(fs, what.run_dir, what.commit.step, what.nonce);
  const bool adopts = what.resume && fs.Stat(made.partial_path_).ok();
  if (!what.resume) RemoveLeftovers(fs, made.step_dir_);
  if (!what.resume || !fs.Stat(what.run_dir).ok()) RemoveLeftovers(fs, what.run_dir);
  CAIRN_RETURN_IF_ERROR(made.CheckNew());
  CAIRN_RETURN_IF_ERROR(CheckSameRun(fs, what.run_dir, what.commit));
  CAIRN_RETURN_IF_ERROR(CheckOutsideSteps(fs, what.run_dir));
  const MarkedContents run{.run = true};
  if (!fs.Stat(what.run_dir).ok()) {
    CAIRN_ASSIGN_OR_RETURN(made.run_dir_made_, PartialDir::Make(fs, what.run_dir, run));
  } else if (adopts && fs.LinkStat(MarkPath(what.run_dir)).ok()) {
    CAIRN_ASSIGN_OR_RETURN(made.run_dir_made_, PartialDir::Adopt(fs, what.run_dir, run));
  }
  // The lock comes first: what is in the directory may be another process's until this one has it.
  Result<RunLock> lock = RunLock::Take(fs, what.run_dir);
  if (lock.status().kind() == StatusKind::kAlreadyExists && made.run_dir_made_) made.run_dir_made_->Keep();
  CAIRN_RETURN_IF_ERROR(lock.status());
  made.own_lock_ = std::make_unique<RunLock>(std::move(lock).value());
  made.lock_ = made.own_lock_.get();
  if (!what.resume) CAIRN_RETURN_IF_ERROR(CleanLeftovers(fs, what.run_dir, ReportLeft));  // may free space
  // A command that was killed before it made its directory left the mark.
  if (what.resume && !adopts) CAIRN_RETURN_IF_ERROR(RemoveMarked(fs, made.partial_path_, LocksHeld::kRun));
  if (!adopts) CAIRN_RETURN_IF_ERROR(CheckFreeSpace(fs, what.run_dir, what.need_bytes));
  CAIRN_ASSIGN_OR_RETURN(made.partial_dir_,
                         (adopts ? PartialDir::Adopt : PartialDir::Make)(
                             fs, made.partial_path_, {.step = true, .files = what.beside}, made.step_dir_));
  if (adopts)
    CAIRN_RETURN_IF_ERROR(
        made.RemoveFiles([](std::string_view name) { return name == kIndexName || name == kManifestName; }));
  return made;
}

Status Committer::MakePartial(const std::vector<std::string>& beside) {
  return MakeMarkedDir(*fs_, partial_path_, {.step = true, .files = beside});
}

Status Committer::CheckNew() const {
  if (!IsListed(*fs_, step_dir_)) return OkStatus();  // no other look: another host may make it
  return AlreadyExists("{} already exists and is never overwritten; choose another directory", step_dir_);
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

Status Committer::Commit(StepSeal& seal, const CommitOptions& options) {
  if (options.lock != nullptr) lock_ = options.lock;
  if (lock_ != nullptr) CAIRN_RETURN_IF_ERROR(lock_->CheckPlace());
  if (options.scratch) CAIRN_RETURN_IF_ERROR(RemoveFiles(options.scratch));
  CAIRN_RETURN_IF_ERROR(WriteBeside(*fs_, partial_path_, options.beside, seal));
  CAIRN_RETURN_IF_ERROR(Seal(seal));
  if (options.read_back) CAIRN_RETURN_IF_ERROR(ReadBack(seal));
  return Publish();
}

Status Committer::ReadBack(const StepSeal& seal) const {
  CAIRN_ASSIGN_OR_RETURN(const auto written, StepReader::Open(*fs_, partial_path_));
  if (EncodeManifest(written->manifest()) == seal.manifest) return OkStatus();
  return Corrupt("{}: the manifest read back is not what was written; check the disk and try again",
                 partial_path_);
}

Status Committer::Publish() {
  if (lock_ != nullptr) CAIRN_RETURN_IF_ERROR(lock_->CheckHeld());
  CAIRN_RETURN_IF_ERROR(fs_->SyncDir(partial_path_));
  if (partial_dir_) {
    CAIRN_RETURN_IF_ERROR(partial_dir_->Rename());
  } else {
    Status renamed = fs_->RenameNew(partial_path_, step_dir_);
    if (renamed.kind() == StatusKind::kAlreadyExists)
      renamed =
          ExchangeStep(*fs_, partial_path_, JoinPath(run_dir_, SupersededDirName(step_, nonce_)), step_dir_);
    CAIRN_RETURN_IF_ERROR(renamed);
    CAIRN_RETURN_IF_ERROR(fs_->SyncDir(run_dir_));
  }
  // A missing hint must not make a committed step a failure.
  if (!partial_dir_ || IsNewest()) (void)WriteLatest(*fs_, run_dir_, step_, nonce_);
  RemoveMark(*fs_, partial_path_);
  if (partial_dir_) partial_dir_->Keep();
  if (run_dir_made_) run_dir_made_->Keep();
  return OkStatus();
}

// The mark may be missing or not bound: on a full disk a process takes its unfinished one away again, after
// another has found it and made the directory.
void Committer::Abandon(const std::vector<std::string>& beside) {
  (void)RemoveMarked(*fs_, partial_path_, {.step = true, .files = beside});
}

// A command may add a step to a run that has continued since.
bool Committer::IsNewest() const {
  const Result<std::vector<int64_t>> steps = ListCurrentSteps(*fs_, run_dir_);
  return !steps.ok() || steps->empty() || steps->back() == step_;
}

void Committer::Keep() {
  if (partial_dir_) partial_dir_->Leave();
  if (run_dir_made_) run_dir_made_->Leave();
}

MarkedContents RunOfOneStep(int64_t step, const std::vector<std::string>& beside) {
  const std::string directory = StepDirName(step);
  MarkedContents contents{.step = true,
                          .files = {directory + "/", std::string(kLockName), std::string(kLatestName)}};
  for (const std::string& name : beside) contents.files.push_back(JoinPath(directory, name));
  return contents;
}

}  // namespace cairn
