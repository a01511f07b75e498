// Columns of text, each as wide as its widest cell.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/cli/colour.h"

namespace cairn {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) { Add(std::move(header)); }

  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Sets the tone of one cell of the row that was added last.
  void Paint(size_t column, Tone tone) { tones_[{rows_.size() - 1, column}] = tone; }
  // Leaves out the columns in which every row has "-".
  void DropEmptyColumns();
  // To stdout.
  void Print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::map<std::pair<size_t, size_t>, Tone> tones_;  // by row and column
  std::set<size_t> dropped_;
};

}  // namespace cairn
