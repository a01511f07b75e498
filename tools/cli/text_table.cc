#include "tools/cli/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "tools/cli/printable.h"

namespace cairn {

void TextTable::Print() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line += i + 1 == row.size() ? row[i] : fmt::format("{:<{}}  ", row[i], widths[i]);
    PrintLine("{}", line);
  }
}

}  // namespace cairn
