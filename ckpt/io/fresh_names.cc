#include "ckpt/io/fresh_names.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "ckpt/base/canonical_path.h"

namespace cairn {
namespace {

// Directories of the real disk that this process has listed: those above them need no further look.
struct Seen {
  std::mutex mutex;
  std::set<std::string> directories;
};
Seen& SeenHere() {
  static auto& seen = *new Seen;
  return seen;
}

bool IsSeen(const FileSystem& fs, const std::string& directory) {
  const std::lock_guard guard(SeenHere().mutex);
  return &fs == &FileSystem::Posix() && SeenHere().directories.contains(directory);
}

// An automounter lists a directory only once somebody has looked for it.
bool IsMountedOnDemand(const std::string& directory) {
  struct statfs fs;
  return ::statfs(directory.c_str(), &fs) == 0 && fs.f_type == AUTOFS_SUPER_MAGIC;
}

// Whether the listing of the directory above, or of one above that, shows that `path` does not exist. If one
// of them cannot be listed, nothing is known.
bool IsAbsent(FileSystem& fs, const std::string& path) {
  const std::string parent = ParentDir(path);
  const std::string_view name = LastName(path);
  if (name.empty() || name == "." || name == "..") return false;  // "": the root
  const auto names = ListFresh(fs, parent);
  if (!names.ok()) return parent != "." && names.status().kind() == StatusKind::kNotFound;
  return !std::ranges::binary_search(*names, name) && !IsMountedOnDemand(parent);
}

}  // namespace

Result<std::vector<std::string>> ListFresh(FileSystem& fs, const std::string& directory) {
  if (!IsSeen(fs, directory) && IsAbsent(fs, directory)) return NotFound("{}: no such directory", directory);
  auto names = fs.List(directory);
  const std::lock_guard guard(SeenHere().mutex);
  if (&fs == &FileSystem::Posix() && names.ok()) SeenHere().directories.insert(directory);
  if (!names.ok()) SeenHere().directories.erase(directory);
  return names;
}

bool IsListed(FileSystem& fs, const std::string& path) {
  const auto names = ListFresh(fs, ParentDir(path));
  return names.ok() && std::ranges::binary_search(*names, LastName(path));
}

}  // namespace cairn
