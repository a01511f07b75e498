#include "ckpt/base/canonical_path.h"

#include <filesystem>

namespace cairn {

std::string CanonicalPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, error);
  std::string text = error ? path : canonical.string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

}  // namespace cairn
