// The known name that an unknown one may stand for: "did you mean 'every'?"
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {

// The number of letters to change, add or drop between two words.
inline size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // distances of a's first i letters to each prefix of b
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// The first of the nearest `names`, if it is near enough to be meant: at most two letters away, or a third
// of a longer word. Empty if none is near.
inline std::string NearestName(const std::vector<std::string>& names, std::string_view given) {
  const auto distance = [&](const std::string& name) { return EditDistance(name, given); };
  const auto nearest = std::ranges::min_element(names, {}, distance);
  if (nearest == names.end() || distance(*nearest) > std::max<size_t>(2, given.size() / 3)) return "";
  return *nearest;
}

}  // namespace cairn
