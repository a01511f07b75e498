// The directories that a pattern of a policy means: *, ?, [...] and {a,b}, with \ before what stands for
// itself.
//
// Not glob(), which passes over a directory that it may not look into: then a run would not be archived, and
// nobody would be told.
#pragma once

#include <string>
#include <vector>

namespace cairn {

struct DirectoryMatches {
  std::vector<std::string> paths;     // sorted; each directory once, whatever names it has
  std::vector<std::string> problems;  // one line each: what cannot be looked into
};
DirectoryMatches MatchDirectories(const std::string& pattern);

// Whether a pattern means this path, be it there or not.
bool MeansPath(const std::string& pattern, const std::string& path);

// The pattern that means this path alone.
std::string LiteralPattern(const std::string& path);

}  // namespace cairn
