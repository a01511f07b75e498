// A table of all pairs of characters says which words begin with one. Few places of a log get past it; only
// there are words compared.
#include "tools/report/log_words.h"

#include <array>
#include <vector>

#include "tools/report/log_word_list.h"

namespace cairn {
namespace {

uint32_t PairOf(char first, char second) {
  return static_cast<uint32_t>(static_cast<unsigned char>(first)) << 8 | static_cast<unsigned char>(second);
}

char Capital(char c) { return IsLower(c) ? static_cast<char>(c - ('a' - 'A')) : c; }

bool Begins(std::string_view text, const LogWord& word) {
  if (!word.any_case) return text.starts_with(word.text);
  return SameWord(text.substr(0, word.text.size()), word.text);
}

// By the first two characters of a word: the words that begin with them.
class WordTable {
 public:
  WordTable() : groups_(1) {  // group 0: no word
    for (const LogWord& word : kLogWords) {
      const char first = word.text[0], second = word.text[1];
      Add(first, second, word);
      if (!word.any_case) continue;
      Add(Capital(first), second, word);
      Add(first, Capital(second), word);
      Add(Capital(first), Capital(second), word);
    }
  }

  uint32_t KindsIn(std::string_view line) const {
    uint32_t kinds = 0;
    for (size_t at = 0; at + 1 < line.size(); ++at) {
      const uint8_t group = group_of_[PairOf(line[at], line[at + 1])];
      if (group == 0) [[likely]]
        continue;
      for (const LogWord* word : groups_[group])
        if ((kinds & word->kinds) != word->kinds && Begins(line.substr(at), *word) &&
            (word->check == nullptr || word->check(line, at, at + word->text.size())))
          kinds |= word->kinds;
    }
    return kinds;
  }

 private:
  void Add(char first, char second, const LogWord& word) {
    uint8_t& group = group_of_[PairOf(first, second)];
    if (group == 0) {
      group = static_cast<uint8_t>(groups_.size());
      groups_.emplace_back();
    }
    if (groups_[group].empty() || groups_[group].back() != &word) groups_[group].push_back(&word);
  }

  std::array<uint8_t, 1 << 16> group_of_{};
  std::vector<std::vector<const LogWord*>> groups_;
};

}  // namespace

uint32_t LineKinds(std::string_view line) {
  static const WordTable table;
  return table.KindsIn(line);
}

}  // namespace cairn
