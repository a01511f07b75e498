// One spelling for a path, to compare places by.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace cairn {

// Absolute, links resolved as far as the path exists, no slash at its end.
std::string CanonicalPath(const std::string& path);

// The same path with the links above its last name resolved: the last name itself may be a link.
std::string PathInRealDirectory(const std::string& path);

// The same path, but without slashes at its end: "runs/gpt/" is "runs/gpt", and "/" stays.
std::string_view WithoutSlashes(std::string_view path);

// The name of a file or directory: that of "runs/gpt/" is "gpt".
std::string_view LastName(std::string_view path);

// Adds the directories of a path below another: those of "a/b/c" are "a" and "a/b".
void AddDirectories(std::string_view path, std::set<std::string>& directories);

}  // namespace cairn
