#include "ckpt/step/partial_dir.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/digest.h"
#include "ckpt/base/nonce.h"
#include "ckpt/io/directory_room.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/manifest.h"
#include "ckpt/step/find_step.h"

namespace cairn {
namespace {

constexpr int kAttempts = 10;

// Other programs have files of the manifest's name, too.
bool IsCommittedStep(FileSystem& fs, const std::string& directory) {
  const Result<FileInfo> manifest = fs.Stat(JoinPath(directory, kManifestName));
  if (!manifest.ok() || manifest->is_directory()) return false;
  return ParseStepDirName(LastName(directory)) || ReadManifest(fs, directory).ok();
}

// The directories of this process, in the order in which they were made: a signal removes them. Never
// destroyed: a thread may be about to do that.
struct LiveDir {
  FileSystem* fs;
  std::string path;
  std::vector<std::string> made;  // above it
  bool Is(const FileSystem& other_fs, const std::string& other_path) const {
    return fs == &other_fs && path == other_path;
  }
};
struct LiveDirs {
  std::mutex mutex;
  std::vector<LiveDir> directories;
};
LiveDirs& Live() {
  static auto& live = *new LiveDirs;
  return live;
}

// Requires the mutex.
void Forget(const FileSystem& fs, const std::string& path) {
  std::erase_if(Live().directories, [&](const LiveDir& live) { return live.Is(fs, path); });
}

// An empty path: nothing was made but those above it.
Status Remove(FileSystem& fs, const std::string& path, const std::vector<std::string>& made) {
  const Status removed = path.empty() ? OkStatus() : RemoveMarked(fs, path, LocksHeld::kAll);
  for (auto directory = made.rbegin(); directory != made.rend(); ++directory) (void)fs.RemoveDir(*directory);
  return removed;
}

// True for the names of partial directories of `final_name`.
bool IsPartialOf(std::string_view name, const std::string& final_name) {
  const std::string prefix = PartialPrefix(final_name);
  return name.starts_with(prefix) && name.size() == prefix.size() + kNonceDigits &&
         IsHex(name.substr(prefix.size()));
}

bool IsLive(const FileSystem& fs, const std::string& path) {
  const std::lock_guard guard(Live().mutex);
  return std::ranges::any_of(Live().directories, [&](const LiveDir& live) { return live.Is(fs, path); });
}

}  // namespace

Status CheckOutsideSteps(FileSystem& fs, const std::string& path) {
  for (std::string at = CanonicalPath(path); at != "." && at != "/"; at = ParentDir(at))
    if (IsCommittedStep(fs, at))
      return InvalidArgument("{}: it is inside the committed step {}; choose another path", path, at);
  return OkStatus();
}

Status MakeOutputDir(FileSystem& fs, const std::string& path) {
  CAIRN_RETURN_IF_ERROR(CheckOutsideSteps(fs, path));
  return MakeDirs(fs, path);
}

Status CheckFreeSpace(FileSystem& fs, const std::string& path, uint64_t need_bytes) {
  CAIRN_RETURN_IF_ERROR(CheckOutsideSteps(fs, path));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<RoomLimit> limits, LimitsAt(fs, path));
  return CheckRoom(path, {.bytes = need_bytes}, limits);
}

void ReportLeft(const Status& why) { std::fputs(fmt::format("cairn: {}\n", why.message()).c_str(), stderr); }

void RemoveLeftovers(FileSystem& fs, const std::string& path) {
  const std::string whole(WithoutSlashes(path));
  const std::string own(LastName(whole));
  const std::string parent = whole.substr(0, whole.size() - own.size());  // with its slash
  const Result<std::vector<std::string>> names = fs.List(ParentDir(whole));
  std::set<std::string> leftovers;
  for (size_t i = 0; names.ok() && i < names->size(); ++i) {
    std::string name = (*names)[i];
    const bool mark = name.ends_with(kMarkSuffix);
    if (mark) name.resize(name.size() - kMarkSuffix.size());
    if (IsPartialOf(name, own) || (mark && name == own)) leftovers.insert(name);
  }
  // A directory that was renamed just before a kill may have its old name again after a power loss.
  if (!leftovers.empty()) (void)fs.SyncDir(ParentDir(whole));
  for (const std::string& name : leftovers) {
    if (IsLive(fs, parent + name)) continue;
    const Status removed = RemoveMarked(fs, parent + name, LocksHeld::kNone);
    // Beside a final name a mark counts only for a run directory that is empty; else it is ignored.
    if (!removed.ok() && name != own && fs.HasOtherProcesses()) ReportLeft(removed);
  }
}

Status ClearPlace(FileSystem& fs, const std::string& path) {
  RemoveLeftovers(fs, path);
  if (!fs.LinkStat(std::string(WithoutSlashes(path))).ok()) return OkStatus();
  return AlreadyExists("{} already exists and is never overwritten; choose another path", path);
}

// The directories above that are missing. One that another process makes meanwhile is that one's.
Status PartialDir::MakeAbove(const std::string& path) {
  std::vector<std::string> missing;
  for (std::string at = ParentDir(path); !fs_->Stat(at).ok() && at != "." && at != "/"; at = ParentDir(at))
    missing.insert(missing.begin(), at);
  for (const std::string& directory : missing) {
    const Status made = fs_->MakeNewDir(directory);
    if (made.kind() == StatusKind::kAlreadyExists) continue;
    CAIRN_RETURN_IF_ERROR(made);
    made_.push_back(directory);
    CAIRN_RETURN_IF_ERROR(fs_->SyncDir(ParentDir(directory)));
  }
  return OkStatus();
}

// Marks the directory and takes the lock on its mark, if the file system has locks. The lock is shared,
// because NFS gives an exclusive one only to writers.
Status PartialDir::Mark(const std::string& path, const MarkedContents& contents) {
  for (int attempt = 1;; ++attempt) {
    CAIRN_RETURN_IF_ERROR(WriteMark(*fs_, path, contents));
    Result<FileLock> lock = fs_->OpenLock(MarkPath(path), FileLock::Missing::kError);
    const bool gone = lock.ok() ? lock->Lock(FileLock::How::kShared).ok() && !lock->IsAtItsPath()
                                : lock.status().kind() == StatusKind::kNotFound;
    if (gone && attempt < kAttempts) continue;  // a process that cleans up was faster
    if (gone) return IoError("{}: other processes keep removing it; run this again later", MarkPath(path));
    if (lock.ok()) lock_ = std::move(*lock);
    return OkStatus();
  }
}

// A signal handler sees all of it or nothing.
Status PartialDir::MakeLive(const std::string& path, const MarkedContents& contents) {
  const std::lock_guard guard(Live().mutex);
  CAIRN_RETURN_IF_ERROR(MakeAbove(path));
  CAIRN_RETURN_IF_ERROR(Mark(path, contents));
  if (const Status status = fs_->MakeNewDir(path); !status.ok()) {
    RemoveMark(*fs_, path);
    return status;
  }
  path_ = path;
  Live().directories.push_back({fs_, path_, made_});
  return BindMark(*fs_, path);
}

Result<PartialDir> PartialDir::Make(FileSystem& fs, const std::string& path, const MarkedContents& contents,
                                    const std::string& final_path) {
  if (fs.LinkStat(path).ok()) return AlreadyExists("{} already exists; choose another path", path);
  CAIRN_RETURN_IF_ERROR(CheckOutsideSteps(fs, path));
  PartialDir made;
  made.fs_ = &fs;
  made.final_path_ = final_path;
  CAIRN_RETURN_IF_ERROR(made.MakeLive(path, contents));
  CAIRN_RETURN_IF_ERROR(fs.SyncDir(ParentDir(path)));
  return made;
}

Result<PartialDir> PartialDir::MakeFor(FileSystem& fs, const std::string& final_path,
                                       const MarkedContents& contents) {
  CAIRN_RETURN_IF_ERROR(ClearPlace(fs, final_path));
  const std::string whole(WithoutSlashes(final_path));
  return Make(fs, PartialPrefix(whole) + NewNonce(), contents, whole);
}

Result<PartialDir> PartialDir::Adopt(FileSystem& fs, const std::string& path, const MarkedContents& contents,
                                     const std::string& final_path) {
  CAIRN_RETURN_IF_ERROR(MakeMarkedDir(fs, path, contents));
  PartialDir adopted;
  adopted.fs_ = &fs;
  adopted.path_ = path;
  adopted.final_path_ = final_path;
  return adopted;
}

Status PartialDir::Rename(const std::string& part) {
  const std::string from = part.empty() ? path_ : JoinPath(path_, part);
  {
    const std::lock_guard guard(Live().mutex);
    const Status renamed = fs_->RenameNew(from, final_path_);
    if (renamed.kind() == StatusKind::kAlreadyExists)
      return AlreadyExists(
          "{} was made by another process meanwhile and is never overwritten; choose another path",
          final_path_);
    CAIRN_RETURN_IF_ERROR(renamed);
    made_.clear();
  }
  return fs_->SyncDir(ParentDir(final_path_));
}

Status PartialDir::Publish(const std::string& part) {
  CAIRN_RETURN_IF_ERROR(Rename(part));
  if (part.empty()) Keep();
  return OkStatus();
}

void PartialDir::Keep() {
  FileSystem* const fs = fs_;
  Leave();
  if (fs != nullptr) RemoveMark(*fs, path_);
}

void PartialDir::Leave() {
  if (fs_ == nullptr) return;
  const std::lock_guard guard(Live().mutex);
  Forget(*fs_, path_);
  fs_ = nullptr;
}

PartialDir::~PartialDir() {
  if (fs_ == nullptr) return;
  const std::lock_guard guard(Live().mutex);
  const Status removed = Remove(*fs_, path_, made_);
  if (!removed.ok() && fs_->HasOtherProcesses()) ReportLeft(removed);
  Forget(*fs_, path_);
}

void RemovePartialDirs() {
  Live().mutex.lock();  // and never unlocked
  FileSystem::LetNoOtherThreadMakeFiles();
  const std::vector<LiveDir>& live = Live().directories;
  for (auto made = live.rbegin(); made != live.rend(); ++made)  // of one that has its final name, the mark
    if (const Status removed = Remove(*made->fs, made->path, made->made); !removed.ok()) ReportLeft(removed);
}

}  // namespace cairn
