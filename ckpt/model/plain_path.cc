#include "ckpt/model/plain_path.h"

#include <algorithm>

#include "ckpt/model/layout.h"

namespace cairn {

bool IsPlainPath(std::string_view path) {
  constexpr size_t kMaxBytes = 4096;  // as Linux takes them
  if (path.size() > kMaxBytes) return false;
  for (size_t at = 0; at <= path.size();) {
    const size_t slash = std::min(path.find('/', at), path.size());
    if (!IsPlainFileName(path.substr(at, slash - at))) return false;
    at = slash + 1;
  }
  return true;
}

}  // namespace cairn
