#include "ckpt/base/canonical_path.h"

#include <filesystem>

namespace cairn {

std::string CanonicalPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, error);
  return std::string(WithoutSlashes(error ? path : canonical.string()));
}

std::string PathInRealDirectory(const std::string& path) {
  std::filesystem::path plain = std::filesystem::absolute(path).lexically_normal();
  if (!plain.has_filename()) plain = plain.parent_path();
  return (CanonicalPath(plain.parent_path().string()) / plain.filename()).string();
}

std::string_view WithoutSlashes(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return path;
}

std::string_view LastName(std::string_view path) {
  path = WithoutSlashes(path);
  return path.substr(path.find_last_of('/') + 1);
}

void AddDirectories(std::string_view path, std::set<std::string>& directories) {
  for (size_t slash = path.find('/'); slash != path.npos; slash = path.find('/', slash + 1))
    directories.emplace(path.substr(0, slash));
}

}  // namespace cairn
