// One spelling for a path, to compare places by.
#pragma once

#include <string>
#include <string_view>

namespace cairn {

// Absolute, links resolved as far as the path exists, no slash at its end.
std::string CanonicalPath(const std::string& path);

// The same path, but without slashes at its end: "runs/gpt/" is "runs/gpt", and "/" stays.
std::string_view WithoutSlashes(std::string_view path);

}  // namespace cairn
