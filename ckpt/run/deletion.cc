// Both deletions make the checks of the table in deletion.h, in its order, and then take the same three
// steps: rename aside, make that durable, unlink the files that the checks saw.
#include "ckpt/run/deletion.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "ckpt/base/backoff.h"
#include "ckpt/io/mount_points.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/manifest.h"
#include "ckpt/run/run_health.h"
#include "ckpt/run/step_hold.h"
#include "ckpt/run/step_tags.h"
#include "ckpt/step/dir_mark.h"
#include "ckpt/step/find_step.h"
#include "ckpt/step/step_reader.h"

namespace cairn {
namespace {

constexpr auto kLockPatience = std::chrono::seconds(10);

Status CheckNoLink(FileSystem& fs, const std::string& directory) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.LinkStat(directory));
  if (info.is_directory()) return OkStatus();
  return InvalidArgument("{} is a {}; Cairn does not delete it, remove it by hand", directory,
                         info.kind == FileKind::kLink ? "link to a directory elsewhere" : "file");
}

// Nothing is mounted in a simulated file system.
Status CheckMounts(FileSystem& fs, const std::string& directory,
                   const std::vector<std::string>& directories = {}) {
  return fs.HasOtherProcesses() ? CheckNoMount(directory, directories) : OkStatus();
}

using IsKnown = std::function<bool(const std::string&)>;

// The `names` in `directory` that are not regular files or that `known` rejects.
Result<std::vector<std::string>> Strangers(FileSystem& fs, const std::string& directory,
                                           const std::vector<std::string>& names, const IsKnown& known) {
  std::vector<std::string> strangers;
  for (const std::string& name : names) {
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.LinkStat(JoinPath(directory, name)));
    if (info.kind != FileKind::kFile || !known(name)) strangers.push_back(name);
  }
  return strangers;
}

// All names in `directory`. Errors: InvalidArgument if one is a stranger.
Result<std::vector<std::string>> OnlyFiles(FileSystem& fs, const std::string& directory,
                                           const IsKnown& known) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<std::string> names, fs.List(directory));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> strangers, Strangers(fs, directory, names, known));
  if (strangers.empty()) return names;
  return InvalidArgument("{} is not part of the checkpoint; the directory stays, move it away first",
                         JoinPath(directory, strangers.front()));
}

IsKnown ListedIn(const Manifest& manifest) {
  std::set<std::string> files{std::string(kManifestName)};
  for (const ManifestFile& file : manifest.files) files.insert(file.name);
  return [files](const std::string& name) { return files.contains(name) || IsParityName(name); };
}

Status Opens(FileSystem& fs, const std::string& directory, Shards shards) {
  return shards == Shards::kHere ? StepReader::Open(fs, directory).status()
                                 : ReadManifest(fs, directory).status();
}

// ---- Steps ----

class StepCheck {
 public:
  StepCheck(FileSystem& fs, const StepDeletion& deletion)
      : fs_(fs), d_(deletion), directory_(JoinPath(deletion.run_dir, deletion.name)) {}

  Status Run(const DeletionProof& proof) {
    CAIRN_RETURN_IF_ERROR(CheckNoLink(fs_, directory_));
    CAIRN_RETURN_IF_ERROR(CheckMounts(fs_, directory_));
    CAIRN_RETURN_IF_ERROR(Identity());
    CAIRN_RETURN_IF_ERROR(Foreign());
    CAIRN_RETURN_IF_ERROR(CheckUntagged(fs_, directory_));
    CAIRN_RETURN_IF_ERROR(Newest());
    CAIRN_RETURN_IF_ERROR(Held());
    return proof.Check(fs_);
  }
  // Valid once Run() succeeded.
  const Manifest& manifest() const { return manifest_; }
  const std::vector<std::string>& files() const { return files_; }

 private:
  Status Identity() {
    Digest digest{};
    CAIRN_ASSIGN_OR_RETURN(manifest_, ReadManifest(fs_, directory_, &digest));
    if (digest != d_.manifest)
      return Corrupt("{}: was saved again meanwhile; it stays, run again", directory_);
    if (!d_.run.empty() && manifest_.run != d_.run)
      return InvalidArgument("{}: of another run than the one that is saved here; it stays", directory_);
    const auto named = ParseStepDirName(d_.name.substr(0, d_.name.find('.')));
    if (named && *named != manifest_.step)
      return Corrupt("{}: its manifest names step {}; it was not deleted", directory_, manifest_.step);
    return OkStatus();
  }

  Status Foreign() {
    CAIRN_ASSIGN_OR_RETURN(files_, OnlyFiles(fs_, directory_, ListedIn(manifest_)));
    return OkStatus();
  }

  Status Newest() {
    if (d_.newest_too) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const auto newest, NewestHealthyStep(fs_, d_.run_dir, d_.shards));
    if (!newest || StepDirName(newest->step) != d_.name) return OkStatus();
    return InvalidArgument("{} is kept: the newest healthy step of its run", directory_);
  }

  Status Held() {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<Hold> holds, HoldsOf(fs_, d_.run_dir, manifest_.step));
    if (holds.empty()) return OkStatus();
    return InvalidArgument("{} stays: {}", directory_, holds.front().Text());
  }

  FileSystem& fs_;
  const StepDeletion& d_;
  const std::string directory_;
  Manifest manifest_;
  std::vector<std::string> files_;
};

// ---- Trees ----

// A training holds RUN/.lock of its run directory.
Status CheckNobodyWrites(FileSystem& fs, const TreeDeletion& d) {
  std::vector<std::string> runs{d.directory};
  for (const std::string& below : d.directories) runs.push_back(JoinPath(d.directory, below));
  for (const std::string& run : runs) {
    Result<FileLock> lock = fs.OpenLock(JoinPath(run, kLockName), FileLock::Missing::kError);
    if (!lock.ok()) continue;
    const Result<bool> free = lock->TryLock(FileLock::How::kShared);
    if (!free.ok() || !*free)
      return InvalidArgument("{}: a training writes into it; {} stays", run, d.directory);
  }
  return OkStatus();
}

// Every entry is in a directory of the tree itself: nothing is reached through a link.
Status CheckNoLinkInside(FileSystem& fs, const TreeDeletion& d) {
  CAIRN_RETURN_IF_ERROR(CheckNoLink(fs, d.directory));
  for (const std::string& below : d.directories)
    CAIRN_RETURN_IF_ERROR(CheckNoLink(fs, JoinPath(d.directory, below)));
  const std::set<std::string> own(d.directories.begin(), d.directories.end());
  for (const std::string& file : d.files) {
    const std::string parent = std::filesystem::path(file).parent_path().string();
    if (!parent.empty() && !own.contains(parent))
      return InvalidArgument("{}: {} is reached through a link; the tree stays", d.directory, file);
  }
  return OkStatus();
}

// Runs and steps are not deleted as parts of a tree: nobody has checked which of their steps must stay.
Status CheckNoRunInside(const TreeDeletion& d) {
  for (const std::string& path : d.files) {
    const std::filesystem::path file(path);
    const bool run = file.filename() == kRunName || file.filename() == kLockName;
    const bool step = file.filename() == kManifestName &&
                      ParseStepDirName((d.directory / file).parent_path().filename().string());
    if (run || step)
      return InvalidArgument("{}: {} belongs to a run of Cairn; it stays, archive the run's steps as steps",
                             d.directory, JoinPath(d.directory, path));
  }
  return OkStatus();
}

// Reads the tree only once the cheap checks have passed.
Status CheckTree(FileSystem& fs, const TreeDeletion& d, const DeletionProof& proof) {
  CAIRN_RETURN_IF_ERROR(CheckNoLinkInside(fs, d));
  CAIRN_RETURN_IF_ERROR(CheckMounts(fs, d.directory, d.directories));
  CAIRN_RETURN_IF_ERROR(CheckNoRunInside(d));
  CAIRN_RETURN_IF_ERROR(CheckNobodyWrites(fs, d));
  CAIRN_RETURN_IF_ERROR(d.same());
  return proof.Check(fs);
}

}  // namespace

Result<std::vector<std::string>> UnlistedFiles(FileSystem& fs, const std::string& step_dir,
                                               const Manifest& manifest) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(step_dir));
  return Strangers(fs, step_dir, names, ListedIn(manifest));
}

// ---- The lock ----

Result<DeletionLock> DeletionLock::Take(FileSystem& fs, const std::string& run_dir) {
  CAIRN_ASSIGN_OR_RETURN(FileLock file, fs.OpenLock(JoinPath(run_dir, kDeletionLockName)));
  for (Backoff backoff;; backoff.Pause()) {
    CAIRN_ASSIGN_OR_RETURN(const bool ours, file.TryLock(FileLock::How::kExclusive));
    if (ours) return DeletionLock(std::move(file));
    if (backoff.elapsed() > kLockPatience)
      return AlreadyExists("{}: another process is deleting something here; run this again later", run_dir);
  }
}

// ---- Deletion ----

Status DeleteStep(FileSystem& fs, const StepDeletion& d, const DeletionProof& proof) {
  CAIRN_ASSIGN_OR_RETURN(const DeletionLock lock, DeletionLock::Take(fs, d.run_dir));
  StepCheck check(fs, d);
  CAIRN_RETURN_IF_ERROR(check.Run(proof));
  const std::string aside = JoinPath(d.run_dir, DeletingDirName(check.manifest().step, d.nonce));
  const MarkedContents files{.files = check.files()};
  CAIRN_ASSIGN_OR_RETURN(const DirectoryFacts facts, FactsOf(fs, JoinPath(d.run_dir, d.name)));
  CAIRN_RETURN_IF_ERROR(WriteMark(fs, aside, files, facts));
  if (const Status renamed = fs.RenameNew(JoinPath(d.run_dir, d.name), aside); !renamed.ok()) {
    RemoveMark(fs, aside);
    return renamed;
  }
  CAIRN_RETURN_IF_ERROR(fs.SyncDir(d.run_dir));
  EndHold(fs, JoinPath(d.run_dir, d.name), aside, check.manifest());
  CAIRN_RETURN_IF_ERROR(RemoveMarked(fs, aside, files));
  return fs.SyncDir(d.run_dir);
}

// Directories are removed only if they are empty by then: files that came meanwhile stay, and the name says
// why.
Status DeleteTree(FileSystem& fs, const TreeDeletion& d, const DeletionProof& proof) {
  const std::string parent = ParentDir(d.directory);
  CAIRN_ASSIGN_OR_RETURN(const DeletionLock lock, DeletionLock::Take(fs, parent));
  CAIRN_RETURN_IF_ERROR(CheckTree(fs, d, proof));
  const std::string aside = d.directory + std::string(kTreeDeletingSuffix);
  if (fs.LinkStat(aside).ok())
    return AlreadyExists("{}: left by a deletion that was killed; its content is stored, remove it by hand",
                         aside);
  CAIRN_RETURN_IF_ERROR(fs.Rename(d.directory, aside));
  CAIRN_RETURN_IF_ERROR(fs.SyncDir(parent));
  for (const std::string& file : d.files) CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, JoinPath(aside, file)));
  for (auto below = d.directories.rbegin(); below != d.directories.rend(); ++below)
    CAIRN_RETURN_IF_ERROR(fs.RemoveDir(JoinPath(aside, *below)));
  CAIRN_RETURN_IF_ERROR(fs.RemoveDir(aside));
  return fs.SyncDir(parent);
}

// ---- Proof ----

namespace {

// The healthy steps of the run in a directory, the newest first and superseded ones last.
Result<std::vector<StepFacts>> HealthySteps(FileSystem& fs, const std::string& run_dir) {
  CAIRN_ASSIGN_OR_RETURN(RunSteps run, ReadRunSteps(fs, run_dir));
  std::erase_if(run.steps, [](const StepFacts& step) {
    return !step.unhealthy.empty() || step.lineage == Lineage::kOtherRun;
  });
  std::ranges::stable_partition(run.steps, [](const StepFacts& step) { return !step.current(); });
  std::ranges::reverse(run.steps);
  return std::move(run.steps);
}

}  // namespace

Result<std::optional<BranchedStep>> NewestHealthyStep(FileSystem& fs, const std::string& run_dir,
                                                      Shards shards) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<StepFacts> steps, HealthySteps(fs, run_dir));
  for (const StepFacts& step : steps)
    if (Opens(fs, JoinPath(run_dir, StepDirName(step.step)), shards).ok())
      return std::optional(step.commit());
  return std::optional<BranchedStep>();
}

Result<HealthySuccessor> HealthySuccessor::Find(FileSystem& fs, const std::string& run_dir,
                                                const BranchedStep& at_least, Shards shards) {
  CAIRN_ASSIGN_OR_RETURN(const auto newest, NewestHealthyStep(fs, run_dir, shards));
  if (!newest || *newest < at_least)
    return NotFound("{}: no healthy step was committed after step {}; the older ones stay", run_dir,
                    at_least.step);
  return HealthySuccessor(JoinPath(run_dir, StepDirName(newest->step)),
                          [&fs, shards](const std::string& step) { return Opens(fs, step, shards); });
}

Result<HealthySuccessor> HealthySuccessor::For(FileSystem& fs, const std::string& run_dir,
                                               const std::string& name, StepLook look) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<StepFacts> steps, HealthySteps(fs, run_dir));
  const std::string going = JoinPath(run_dir, name);
  Status newer;
  for (const StepFacts& step : steps) {
    std::string directory = JoinPath(run_dir, StepDirName(step.step));
    if (directory == going) {
      if (newer.ok()) return InvalidArgument("{} is kept: the newest healthy step of its run", going);
      return Status(newer.kind(), fmt::format("{} stays, because no newer step of its run is good: {}", going,
                                              newer.message()));
    }
    const Status good = look(directory);
    if (good.ok()) return HealthySuccessor(std::move(directory), std::move(look));
    if (newer.ok()) newer = good;
  }
  return Corrupt("{} stays, because no other step of its run is healthy and good{}", going,
                 newer.ok() ? "" : ": " + newer.message());
}

Status HealthySuccessor::Check(FileSystem&) const { return look_(directory_); }

std::string HealthySuccessor::Text() const { return fmt::format("{} is newer and healthy", directory_); }

}  // namespace cairn
