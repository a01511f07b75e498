#include "ckpt/io/fresh_names.h"

#include <algorithm>

#include "ckpt/base/canonical_path.h"

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

}  // namespace cairn
