// A table of all pairs of characters says which words begin with one. Few places of a log get past it; only
// there are words compared.
#include "tools/report/log_words.h"

#include <algorithm>

#include "tools/report/log_word_list.h"

namespace cairn {
namespace {

uint32_t PairOf(char first, char second) {
  return static_cast<uint32_t>(static_cast<unsigned char>(first)) << 8 | static_cast<unsigned char>(second);
}

char Small(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }
char Capital(char c) { return IsLower(c) ? static_cast<char>(c - ('a' - 'A')) : c; }

bool Begins(std::string_view text, const LogWord& word) {
  if (!word.any_case) return text.starts_with(word.text);
  return text.size() >= word.text.size() &&
         std::ranges::equal(text.substr(0, word.text.size()), word.text, {}, Small);
}

}  // namespace

WordFinder::WordFinder() : groups_(1) {  // group 0: no word
  const auto add = [this](char first, char second, size_t word) {
    uint8_t& group = group_of_[PairOf(first, second)];
    if (group == 0) {
      group = static_cast<uint8_t>(groups_.size());
      groups_.emplace_back();
    }
    if (std::ranges::find(groups_[group], word) == groups_[group].end())
      groups_[group].push_back(static_cast<uint8_t>(word));
  };
  for (size_t i = 0; i < std::size(kLogWords); ++i) {
    const char first = kLogWords[i].text[0], second = kLogWords[i].text[1];
    add(first, second, i);
    if (!kLogWords[i].any_case) continue;
    add(Capital(first), second, i);
    add(first, Capital(second), i);
    add(Capital(first), Capital(second), i);
  }
}

std::span<const WordHit> WordFinder::Find(std::string_view block) {
  hits_.clear();
  for (size_t at = 0; at + 1 < block.size(); ++at) {
    const uint8_t group = group_of_[PairOf(block[at], block[at + 1])];
    if (group == 0) [[likely]]
      continue;
    for (const uint8_t i : groups_[group]) {
      const LogWord& word = kLogWords[i];
      const size_t end = at + word.text.size();
      if (Begins(block.substr(at), word) && (word.check == nullptr || word.check(block, at, end)))
        hits_.push_back({end, word.kinds});
    }
  }
  std::ranges::sort(hits_, {}, &WordHit::end);
  return hits_;
}

}  // namespace cairn
