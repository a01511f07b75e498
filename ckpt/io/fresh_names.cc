#include "ckpt/io/fresh_names.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/unique_fd.h"

namespace cairn {

Result<std::vector<std::string>> ListFresh(FileSystem& fs, const std::string& directory) {
  auto names = fs.List(directory);
  if (names.status().kind() != StatusKind::kNotFound || !IsListed(fs, directory)) return names;
  return fs.List(directory);
}

bool IsListed(FileSystem& fs, const std::string& path) {
  const std::string parent = ParentDir(path);
  if (parent == path) return true;  // the root
  const auto names = ListFresh(fs, parent);
  return names.ok() && std::ranges::binary_search(*names, LastName(path));
}

// NFS asks when the directory is opened. FUSE asks when a name is to be made that must be new: a link to
// /proc, which is another file system and therefore always refused, but only after the name was looked for.
bool IsThereAfterAll(const std::string& path) {
  const std::string parent = ParentDir(path);
  const std::string_view name = LastName(path);
  if (name.empty() || name == "." || name == "..") return false;
  struct statfs where;
  const auto fails = [&] { return ::statfs(parent.c_str(), &where) != 0; };
  if (fails() && (errno != ENOENT || !IsThereAfterAll(parent) || fails())) return false;
  const std::string place = JoinPath(parent, name);
  if (where.f_type == FUSE_SUPER_MAGIC)
    return ::linkat(AT_FDCWD, "/proc/self", AT_FDCWD, place.c_str(), 0) != 0 && errno == EEXIST;
  if (where.f_type != NFS_SUPER_MAGIC) return false;
  const UniqueFd opened(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return ::faccessat(AT_FDCWD, place.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

}  // namespace cairn
