// "a, b, c, d and 7 more": a longer list would bury the message that it is in.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// Calls `name` for the first `most` of `count` indices.
inline std::string ShortList(size_t count, const std::function<std::string(size_t index)>& name,
                             size_t most = 4, std::string_view separator = ", ") {
  std::string list;
  for (size_t i = 0; i < std::min(count, most); ++i) {
    if (i > 0) list += separator;
    list += name(i);
  }
  return count > most ? list + " and " + std::to_string(count - most) + " more" : list;
}

inline std::string ShortList(const std::vector<std::string>& names, size_t most = 4) {
  return ShortList(
      names.size(), [&](size_t i) { return names[i]; }, most);
}

}  // namespace cairn
