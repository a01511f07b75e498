#include "ckpt/base/glob.h"

#include <fnmatch.h>

namespace cairn {

bool FitsGlob(const std::string& text, const std::string& glob) {
  return ::fnmatch(glob.c_str(), text.c_str(), 0) == 0;
}

}  // namespace cairn
