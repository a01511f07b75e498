// Columns of text, each as wide as its widest cell.
#pragma once

#include <string>
#include <vector>

namespace cairn {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) { Add(std::move(header)); }

  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // To stdout.
  void Print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace cairn
