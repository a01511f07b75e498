// Braces are expanded first, as a shell does. Each alternative is walked component by component: a plain
// component is used as it is, one with a wildcard is compared with the names in its directory.
#include "tools/archive/policy/directory_pattern.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>

#include "ckpt/base/canonical_path.h"
#include "ckpt/io/file_system.h"

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

constexpr std::string_view kSpecial = "*?[]{}\\";

// The next of `chars` without a backslash before it.
size_t FindPlain(const std::string& text, std::string_view chars, size_t from) {
  for (size_t at = from; at < text.size(); ++at) {
    if (text[at] == '\\')
      ++at;
    else if (chars.find(text[at]) != chars.npos)
      return at;
  }
  return text.npos;
}

std::vector<std::string> WithoutBraces(const std::string& pattern) {
  const size_t open = FindPlain(pattern, "{", 0);
  if (open == pattern.npos) return {pattern};
  std::vector<std::string> inside;
  size_t begin = open + 1, at = open;
  for (int depth = 1; depth > 0;) {
    at = FindPlain(pattern, "{},", at + 1);
    if (at == pattern.npos) return {pattern};  // never closed: itself
    if (pattern[at] == '{') ++depth;
    if (pattern[at] == '}') --depth;
    if (depth == 0 || (depth == 1 && pattern[at] == ',')) {
      inside.push_back(pattern.substr(begin, at - begin));
      begin = at + 1;
    }
  }
  std::vector<std::string> patterns;
  for (const std::string& one : inside)
    std::ranges::move(WithoutBraces(pattern.substr(0, open) + one + pattern.substr(at + 1)),
                      std::back_inserter(patterns));
  return patterns;
}

std::string Unescaped(const std::string& component) {
  std::string plain;
  for (size_t at = 0; at < component.size(); ++at) {
    if (component[at] == '\\' && at + 1 < component.size()) ++at;
    plain.push_back(component[at]);
  }
  return plain;
}

class Walk {
 public:
  explicit Walk(DirectoryMatches& matches) : matches_(matches) {}

  // `pattern` from `at` on, below the directory `base`.
  void Below(const std::string& base, const std::string& pattern, size_t at) {
    while (at < pattern.size() && pattern[at] == '/') ++at;
    if (at == pattern.size()) return End(base);
    const size_t end = std::min(pattern.find('/', at), pattern.size());
    const std::string component = pattern.substr(at, end - at);
    const auto path = [&](const std::string& name) { return base.empty() ? name : JoinPath(base, name); };
    if (FindPlain(component, "*?[", 0) == component.npos)
      return Below(path(Unescaped(component)), pattern, end);
    std::error_code error;
    std::vector<std::string> names;
    for (stdfs::directory_iterator entry(base.empty() ? "." : base, error), last; !error && entry != last;
         entry.increment(error))
      if (::fnmatch(component.c_str(), entry->path().filename().c_str(), FNM_PERIOD) == 0)
        names.push_back(entry->path().filename());
    Note(base, error);
    std::ranges::sort(names);
    for (const std::string& name : names) Below(path(name), pattern, end);
  }

 private:
  void End(const std::string& path) {
    std::error_code error;
    const bool directory = stdfs::is_directory(path, error);
    Note(path, error);
    if (directory && seen_.insert(CanonicalPath(path)).second) matches_.paths.push_back(path);
  }

  void Note(const std::string& path, const std::error_code& error) {
    if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
      matches_.problems.push_back(fmt::format("{}: the directory cannot be read: {}", path, error.message()));
  }

  DirectoryMatches& matches_;
  std::set<std::string> seen_;
};

}  // namespace

DirectoryMatches MatchDirectories(const std::string& pattern) {
  DirectoryMatches matches;
  Walk walk(matches);
  for (const std::string& one : WithoutBraces(pattern)) walk.Below(one.starts_with('/') ? "/" : "", one, 0);
  std::ranges::sort(matches.paths);
  return matches;
}

bool MeansPath(const std::string& pattern, const std::string& path) {
  return std::ranges::any_of(WithoutBraces(pattern), [&](const std::string& one) {
    return ::fnmatch(one.c_str(), path.c_str(), FNM_PATHNAME) == 0;
  });
}

std::string LiteralPattern(const std::string& path) {
  std::string pattern;
  for (const char c : path) {
    if (kSpecial.find(c) != kSpecial.npos) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

}  // namespace cairn
