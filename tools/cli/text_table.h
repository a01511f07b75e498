// Columns of text, each as wide as its widest cell, for a terminal or as a table of Markdown.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/cli/printable.h"

namespace cairn {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) { Add(std::move(header)); }

  // Control characters and ends of lines in a cell become "?".
  void Add(std::vector<std::string> cells);
  // Sets the tone of one cell of the row that was added last.
  void Paint(size_t column, Tone tone) { tones_[{rows_.size() - 1, column}] = tone; }
  void AlignRight(size_t column) { right_.insert(column); }
  // Leaves out the columns in which every row has "-".
  void DropEmptyColumns();

  // For a terminal; in colour if stdout is one.
  std::string Text() const;
  std::string Markdown() const;
  void Print() const { fmt::print("{}", Text()); }

 private:
  using Rows = std::vector<std::vector<std::string>>;
  std::vector<size_t> Widths(const Rows& rows, size_t least) const;
  std::string Padded(const std::string& cell, size_t width, size_t column) const;

  Rows rows_;
  std::map<std::pair<size_t, size_t>, Tone> tones_;  // by row and column
  std::set<size_t> right_, dropped_;                 // columns
};

}  // namespace cairn
