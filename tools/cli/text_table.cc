#include "tools/cli/text_table.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "tools/cli/printable.h"

namespace cairn {

void TextTable::DropEmptyColumns() {
  for (size_t i = 0; i < rows_.front().size(); ++i)
    if (rows_.size() > 1 &&
        std::all_of(rows_.begin() + 1, rows_.end(), [i](const auto& row) { return row[i] == "-"; }))
      dropped_.insert(i);
}

void TextTable::Print() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t i = 0; i < rows_[r].size(); ++i) {
      if (dropped_.contains(i)) continue;
      const std::string cell = Printable(rows_[r][i], Lines::kOne);
      const auto tone = tones_.find({r, i});
      line += tone == tones_.end() ? cell : Painted(cell, tone->second, STDOUT_FILENO);
      line.append(widths[i] + 2 - std::min(widths[i] + 2, rows_[r][i].size()), ' ');
    }
    fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  }
}

}  // namespace cairn
