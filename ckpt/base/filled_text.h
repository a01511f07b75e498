// Templates of files that the program writes.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace cairn {

// `text` with each %%NAME%% replaced by its value; each name must have one.
inline std::string FilledText(std::string_view text, const std::map<std::string_view, std::string>& values) {
  constexpr std::string_view kMark = "%%";
  std::string filled;
  for (size_t at; (at = text.find(kMark)) != text.npos;) {
    const size_t end = text.find(kMark, at + kMark.size());
    filled += text.substr(0, at);
    filled += values.at(text.substr(at + kMark.size(), end - at - kMark.size()));
    text.remove_prefix(end + kMark.size());
  }
  return filled.append(text);
}

}  // namespace cairn
