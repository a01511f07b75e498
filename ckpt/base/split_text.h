// The parts of a text.
#pragma once

#include <string_view>
#include <vector>

namespace cairn {

// At least one part, which may be empty.
inline std::vector<std::string_view> SplitText(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(separator)) != text.npos; text.remove_prefix(end + 1))
    parts.push_back(text.substr(0, end));
  parts.push_back(text);
  return parts;
}

// The rows of a table that the program carries: lines that are neither empty nor begin with '#'.
inline std::vector<std::string_view> TextRows(std::string_view text) {
  std::vector<std::string_view> rows = SplitText(text, '\n');
  std::erase_if(rows, [](std::string_view row) { return row.empty() || row.starts_with('#'); });
  return rows;
}

}  // namespace cairn
