#include "tools/cli/text_table.h"

#include <unistd.h>

#include <algorithm>

namespace cairn {
namespace {

// Characters, not bytes, of UTF-8.
size_t WidthOf(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

void TextTable::Add(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = Printable(std::move(cell), Lines::kOne);
  rows_.push_back(std::move(cells));
}

void TextTable::DropEmptyColumns() {
  for (size_t i = 0; i < rows_.front().size(); ++i)
    if (rows_.size() > 1 &&
        std::all_of(rows_.begin() + 1, rows_.end(), [i](const auto& row) { return row[i] == "-"; }))
      dropped_.insert(i);
}

std::vector<size_t> TextTable::Widths(const Rows& rows, size_t least) const {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), least);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], WidthOf(row[i]));
  }
  return widths;
}

std::string TextTable::Padded(const std::string& cell, size_t width, size_t column) const {
  const std::string blanks(width - WidthOf(cell), ' ');
  return right_.contains(column) ? blanks + cell : cell + blanks;
}

std::string TextTable::Text() const {
  const std::vector<size_t> widths = Widths(rows_, 0);
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t i = 0; i < rows_[r].size(); ++i) {
      if (dropped_.contains(i)) continue;
      const std::string padded = Padded(rows_[r][i], widths[i], i);
      const auto tone = tones_.find({r, i});
      line += (tone == tones_.end() ? padded : Painted(padded, tone->second, STDOUT_FILENO)) + "  ";
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return text;
}

std::string TextTable::Markdown() const {
  Rows rows = rows_;
  for (auto& row : rows)
    for (std::string& cell : row)  // a bar must not end its column
      for (size_t bar = cell.find('|'); bar != cell.npos; bar = cell.find('|', bar + 2))
        cell.insert(bar, "\\");
  const std::vector<size_t> widths = Widths(rows, 3);
  std::vector<std::string> rule;
  for (size_t i = 0; i < widths.size(); ++i) {
    const std::string dashes(widths[i] - 1, '-');
    rule.push_back(right_.contains(i) ? dashes + ':' : ':' + dashes);
  }
  rows.insert(rows.begin() + 1, std::move(rule));
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) text += "| " + Padded(row[i], widths[i], i) + ' ';
    text += "|\n";
  }
  return text;
}

}  // namespace cairn
