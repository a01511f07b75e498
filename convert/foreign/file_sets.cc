#include "convert/foreign/file_sets.h"

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/io/file_system.h"

namespace cairn {
namespace {

constexpr const char* kMarks = "#*";
constexpr size_t kMostDigits = 6;

struct FileSet {
  std::set<std::string> names;
  std::vector<std::set<std::string>> values;  // of each mark
};

// All numbers up to the highest, as wide as the narrowest: "00", "01", or "9", "10".
void FillNumbers(std::set<std::string>& numbers) {
  int highest = 0;
  size_t width = kMostDigits;
  for (const std::string& number : numbers) {
    highest = std::max(highest, std::stoi(number));
    width = std::min(width, number.size());
  }
  for (int number = 0; number <= highest; ++number) numbers.insert(fmt::format("{:0{}}", number, width));
}

// The first name that the set lacks, of those that begin with `name`; empty: none.
std::string FirstMissing(const FileSet& set, std::string_view pattern, size_t mark, std::string name) {
  const size_t at = pattern.find_first_of(kMarks);
  name += pattern.substr(0, at);
  if (at == pattern.npos) return set.names.contains(name) ? "" : name;
  for (const std::string& value : set.values[mark])
    if (std::string missing = FirstMissing(set, pattern.substr(at + 1), mark + 1, name + value);
        !missing.empty())
      return missing;
  return "";
}

}  // namespace

bool FitsPattern(std::string_view pattern, std::string_view name, std::vector<std::string>& values) {
  const size_t mark = pattern.find_first_of(kMarks);
  if (mark == pattern.npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, mark))) return false;
  name.remove_prefix(mark);
  const size_t most =
      pattern[mark] == '*' ? name.find('/') : std::min(name.find_first_not_of("0123456789"), kMostDigits);
  for (size_t length = std::min(most, name.size()); length > 0; --length) {
    values.emplace_back(name.substr(0, length));
    if (FitsPattern(pattern.substr(mark + 1), name.substr(length), values)) return true;
    values.pop_back();
  }
  return false;
}

Status CheckFileSets(std::string_view pattern, const std::string& directory,
                     const std::vector<std::string>& files) {
  std::map<std::string, FileSet> sets;  // by folder
  for (const std::string& file : files) {
    size_t slash = file.size();
    for (auto depth = std::ranges::count(pattern, '/'); slash != file.npos && depth >= 0; --depth)
      slash = slash == 0 ? file.npos : file.rfind('/', slash - 1);
    const std::string folder = slash == file.npos ? "" : file.substr(0, slash + 1);
    std::vector<std::string> values;
    if (!FitsPattern(pattern, std::string_view(file).substr(folder.size()), values)) continue;
    FileSet& set = sets[folder];
    set.names.insert(file.substr(folder.size()));
    set.values.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) set.values[i].insert(values[i]);
  }
  for (auto& [folder, set] : sets) {
    for (size_t at = pattern.find_first_of(kMarks), mark = 0; at != pattern.npos; ++mark) {
      if (pattern[at] == '#') FillNumbers(set.values[mark]);
      at = pattern.find_first_of(kMarks, at + 1);
    }
    if (const std::string missing = FirstMissing(set, pattern, 0, ""); !missing.empty())
      return NotFound("{}: is missing, but others of its kind exist", JoinPath(directory, folder + missing));
  }
  return OkStatus();
}

}  // namespace cairn
