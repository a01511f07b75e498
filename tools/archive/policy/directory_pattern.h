// The directories that match a pattern of a policy: *, ?, [...] and {a,b}, with \ before a literal character.
//
// Not glob(), which silently skips a directory that it may not read: a run in it would never be archived.
#pragma once

#include <string>
#include <vector>

namespace cairn {

struct DirectoryMatches {
  std::vector<std::string> paths;     // sorted; each directory once, whatever names it has
  std::vector<std::string> problems;  // one line for each directory that cannot be read
};
DirectoryMatches MatchDirectories(const std::string& pattern);

// True if a pattern matches this path, which need not exist.
bool MeansPath(const std::string& pattern, const std::string& path);

// The pattern that matches only this path.
std::string LiteralPattern(const std::string& path);

}  // namespace cairn
