#include "ckpt/step/partial_dir.h"

#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/digest.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/manifest.h"

namespace cairn {
namespace {

constexpr int kAttempts = 10;
constexpr size_t kNonceDigits = 8;

// Other programs have files of the manifest's name, too.
bool IsCommittedStep(FileSystem& fs, const std::string& directory) {
  const Result<FileInfo> manifest = fs.Stat(JoinPath(directory, kManifestName));
  if (!manifest.ok() || manifest->is_directory()) return false;
  return ParseStepDirName(directory.substr(directory.find_last_of('/') + 1)) ||
         ReadManifest(fs, directory).ok();
}

// Directories that a signal removes. Never destroyed: a thread may be about to remove them.
struct LiveDirs {
  std::mutex mutex;
  std::map<std::string, std::pair<FileSystem*, std::vector<std::string>>> directories;
};
LiveDirs& Live() {
  static auto& live = *new LiveDirs;
  return live;
}

// Removes it with the directories that were made above it and are empty.
void Remove(FileSystem& fs, const std::string& path, const std::vector<std::string>& made) {
  (void)RemoveTree(fs, path);
  for (auto directory = made.rbegin(); directory != made.rend(); ++directory) {
    (void)fs.RemoveFile(JoinPath(*directory, kLockName));
    (void)fs.RemoveDir(*directory);
  }
}

constexpr std::string_view kPartialMark = ".partial-";

// True if `name` is a partial directory of `final_name`. Those of steps belong to their run, whose lock tells
// whether they are being written (CleanLeftovers).
bool IsPartialOf(std::string_view name, const std::string& final_name) {
  const std::string prefix = final_name + std::string(kPartialMark);
  return name.starts_with(prefix) && name.size() == prefix.size() + kNonceDigits &&
         IsHex(name.substr(prefix.size())) && !ParseMarkedDirName(name);
}

// No other process uses a simulated file system.
bool HasOtherProcesses(const FileSystem& fs) { return &fs == &FileSystem::Posix(); }

void RemoveAbandoned(FileSystem& fs, const std::string& final_path) {
  const std::string parent = ParentDir(final_path);
  const Result<std::vector<std::string>> names = fs.List(parent);
  for (size_t i = 0; names.ok() && i < names->size(); ++i) {
    if (!IsPartialOf((*names)[i], final_path.substr(final_path.find_last_of('/') + 1))) continue;
    const std::string path = JoinPath(parent, (*names)[i]);
    Result<FileLock> lock = FileLock::Open(path, FileLock::Missing::kError);
    if (HasOtherProcesses(fs) && !lock.ok()) continue;
    const Result<bool> free = lock.ok() ? lock->TryLock(FileLock::How::kExclusive) : true;
    if (free.ok() && *free) (void)RemoveTree(fs, path);
  }
}

}  // namespace

std::string NewNonce() {
  std::random_device random;
  return fmt::format("{:08x}", static_cast<uint32_t>(random()));
}

Status CheckOutsideSteps(FileSystem& fs, const std::string& path) {
  for (std::string at = CanonicalPath(path); at != "." && at != "/"; at = ParentDir(at))
    if (IsCommittedStep(fs, at))
      return InvalidArgument("{}: would write into the committed step {}; choose another place", path, at);
  return OkStatus();
}

Status MakeOutputDir(FileSystem& fs, const std::string& path) {
  CAIRN_RETURN_IF_ERROR(CheckOutsideSteps(fs, path));
  return MakeDirs(fs, path);
}

Status CheckFreeSpace(FileSystem& fs, const std::string& path, uint64_t need_bytes) {
  CAIRN_RETURN_IF_ERROR(CheckOutsideSteps(fs, path));
  std::string nearest = path;
  while (!fs.Stat(nearest).ok() && nearest != "." && nearest != "/") nearest = ParentDir(nearest);
  CAIRN_ASSIGN_OR_RETURN(const uint64_t have_bytes, fs.FreeBytes(nearest));
  if (need_bytes <= have_bytes) return OkStatus();
  return NoSpace("{}: needs about {} bytes, {} are free; free some space or choose another place", path,
                 need_bytes, have_bytes);
}

Result<PartialDir> PartialDir::Make(FileSystem& fs, const std::string& path) {
  if (fs.Stat(path).ok()) return AlreadyExists("{} is there already; choose another place", path);
  CAIRN_RETURN_IF_ERROR(CheckOutsideSteps(fs, path));
  PartialDir made;
  made.fs_ = &fs;
  made.path_ = path;
  for (std::string at = ParentDir(path); !fs.Stat(at).ok() && at != "." && at != "/"; at = ParentDir(at))
    made.made_.insert(made.made_.begin(), at);
  CAIRN_RETURN_IF_ERROR(MakeDirs(fs, path));
  return made;
}

Result<PartialDir> PartialDir::MakeFor(FileSystem& fs, const std::string& final_path) {
  RemoveAbandoned(fs, final_path);
  for (int attempt = 1;; ++attempt) {
    CAIRN_ASSIGN_OR_RETURN(PartialDir made,
                           Make(fs, fmt::format("{}{}{}", final_path, kPartialMark, NewNonce())));
    made.final_path_ = final_path;
    if (!HasOtherProcesses(fs)) return made;
    // The lock is shared, because NFS gives an exclusive one only to writers. Some file systems have no
    // locks.
    Result<FileLock> lock = FileLock::Open(made.path_, FileLock::Missing::kError);
    if (lock.ok() && lock->Lock(FileLock::How::kShared).ok()) {
      if (!lock->IsAtItsPath() && attempt < kAttempts) continue;  // removed by a process that held it first
      made.lock_ = std::move(*lock);
    }
    const std::lock_guard guard(Live().mutex);
    Live().directories.emplace(made.path_, std::pair(&fs, made.made_));
    return made;
  }
}

Status PartialDir::Publish() {
  {
    const std::lock_guard guard(Live().mutex);
    CAIRN_RETURN_IF_ERROR(fs_->Rename(path_, final_path_));
    Live().directories.erase(path_);
  }
  return std::exchange(fs_, nullptr)->SyncDir(ParentDir(final_path_));
}

PartialDir PartialDir::Adopt(FileSystem& fs, const std::string& path) {
  PartialDir adopted;
  adopted.fs_ = &fs;
  adopted.path_ = path;
  return adopted;
}

PartialDir::~PartialDir() {
  if (fs_ == nullptr) return;
  const std::lock_guard guard(Live().mutex);
  Remove(*fs_, path_, made_);
  Live().directories.erase(path_);
}

void RemovePartialDirs() {
  Live().mutex.lock();  // and never unlocked
  for (const auto& [path, facts] : Live().directories)
    for (int attempt = 0; attempt < kAttempts && facts.first->LinkStat(path).ok(); ++attempt)
      Remove(*facts.first, path, facts.second);  // another thread may make files meanwhile
}

}  // namespace cairn
