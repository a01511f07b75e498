#include "ckpt/base/glob.h"

#include <fnmatch.h>

#include <algorithm>

namespace cairn {

bool FitsGlob(const std::string& text, const std::string& glob) {
  return ::fnmatch(glob.c_str(), text.c_str(), 0) == 0;
}

bool FitsAnyGlob(const std::string& text, std::span<const std::string> globs) {
  return std::ranges::any_of(globs, [&](const std::string& glob) { return FitsGlob(text, glob); });
}

}  // namespace cairn
