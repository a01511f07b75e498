// One spelling for a path, to compare places by.
#pragma once

#include <string>

namespace cairn {

// Absolute, links resolved as far as the path exists, no slash at its end.
std::string CanonicalPath(const std::string& path);

}  // namespace cairn
