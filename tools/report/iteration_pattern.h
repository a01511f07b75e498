// Reads iteration lines that look like the last one, several times as fast as taking each apart.
//
// A program writes all its lines with one format string: the same words between other numbers. Once a line
// was understood, the words of the next are only compared, and its numbers read where they stand.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/report/iteration_line.h"

namespace cairn {

class IterationPattern {
 public:
  // Takes the words from a line that ParseIterations understood as this one.
  void Learn(std::string_view text);
  // Reads `text`, a whole line, but for consumed samples and tokens. False, and `line` is anything, where it
  // differs in more than its numbers.
  bool Match(std::string_view text, IterationLine& line) const;
  // What stands before the word "iteration".
  size_t prefix_bytes() const { return prefix_bytes_; }

 private:
  struct Piece {
    std::string words;  // before the number and the blanks that pad it
    IterationField field;
  };

  std::vector<Piece> pieces_;  // empty: nothing learnt
  std::string tail_;
  size_t prefix_bytes_ = 0;
};

}  // namespace cairn
