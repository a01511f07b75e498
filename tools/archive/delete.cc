#include "tools/archive/delete.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "ckpt/layout.h"
#include "ckpt/step_hold.h"
#include "convert/partial_dir.h"
#include "tools/archive/source.h"

namespace cairn {
namespace {

Status CheckNothingElseInside(FileSystem& fs, const std::string& step_dir, const ArchiveRecord& record) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<TreeFile> files, ListTree(fs, step_dir, Links::kKeep));
  std::set<std::string> archived;
  for (const ArchivedFile& file : record.files) archived.insert(file.name);
  for (const TreeFile& file : files)
    if (!archived.contains(file.name))
      return InvalidArgument(
          "{} is not part of the checkpoint and not archived; the source stays, move it away first",
          JoinPath(step_dir, file.name));
  return OkStatus();
}

Status CheckUnchanged(FileSystem& fs, const std::string& source, const ArchiveRecord& record) {
  switch (record.form) {
    case Form::kFull:
      return CheckManifestUnchanged(fs, source, record.manifest_digest);
    case Form::kFiles:
      return CheckTreeIs(fs, source, record);
    case Form::kWeights:  // a part of the step only
      return CheckManifestUnchanged(fs, source, record.derived_from);
  }
  return OkStatus();
}

// While a training holds the run's lock, its newest step is what it would resume from.
Status CheckNotResumeStep(FileSystem& fs, const std::string& run_dir, int64_t step) {
  if (!fs.Stat(JoinPath(run_dir, kLockName)).ok()) return OkStatus();
  const Result<RunLock> lock = RunLock::Take(run_dir);
  if (lock.ok()) return OkStatus();
  if (lock.status().kind() != StatusKind::kAlreadyExists) return lock.status();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(fs, run_dir));
  if (!steps.empty() && steps.back() == step)
    return InvalidArgument("{}: a training is writing here, so its newest step {} stays", run_dir, step);
  return OkStatus();
}

}  // namespace

Status DeleteSource(FileSystem& fs, const std::string& step_dir, const std::string& store,
                    const ProvenCopy& copy) {
  const std::string source = CanonicalPath(step_dir);
  if ((CanonicalPath(store) + "/").starts_with(source + "/"))
    return InvalidArgument("{}: the store lies within it; the source stays", step_dir);
  if (copy.record().form == Form::kFull)  // CheckTreeIs sees to a tree
    CAIRN_RETURN_IF_ERROR(CheckNothingElseInside(fs, source, copy.record()));
  CAIRN_RETURN_IF_ERROR(CheckUnchanged(fs, source, copy.record()));
  const std::string run_dir = std::filesystem::path(source).parent_path().string();
  CAIRN_RETURN_IF_ERROR(CheckNotResumeStep(fs, run_dir, copy.record().step));
  CAIRN_ASSIGN_OR_RETURN(const std::string holder, HolderOf(fs, run_dir, copy.record().step));
  if (!holder.empty()) return InvalidArgument("{}: {} uses its shards, so it stays", step_dir, holder);
  // The new name comes first and is durable, so that a half-removed step is never taken for a whole one.
  const std::string doomed = JoinPath(run_dir, DeletingDirName(copy.record().step, NewNonce()));
  CAIRN_RETURN_IF_ERROR(fs.Rename(source, doomed));
  CAIRN_RETURN_IF_ERROR(fs.SyncDir(run_dir));
  CAIRN_RETURN_IF_ERROR(RemoveTree(fs, doomed));
  return fs.SyncDir(run_dir);
}

}  // namespace cairn
