// Paths in untrusted text that may be joined to a directory: they cannot lead out of it.
#pragma once

#include <string_view>

namespace cairn {

// "a/b/c": no "..", nothing empty, not absolute, and not too long.
bool IsPlainPath(std::string_view path);

}  // namespace cairn
