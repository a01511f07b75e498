#include "tools/report/iteration_pattern.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tools/report/numbers.h"

namespace cairn {
namespace {

constexpr size_t kMaxPieces = 64;

bool IsNumberCharacter(char c) { return c > ' ' && c != '|' && c != ',' && c != '/'; }

size_t SkipBlanks(std::string_view text, size_t at) {
  while (at < text.size() && text[at] == ' ') ++at;
  return at;
}

// Equal but for digits: the prefix may be a date.
bool SamePrefix(const char* text, const std::string& words) {
  for (size_t i = 0; i < words.size(); ++i)
    if (text[i] != words[i] && !(IsDigit(text[i]) && IsDigit(words[i]))) return false;
  return true;
}

// What the first line of a start said for all, or another field says better.
bool IsNeeded(IterationField field, bool has_batch) {
  return field != IterationField::kSamples && field != IterationField::kTokens &&
         !(has_batch && field == IterationField::kSamplesPerSecond);
}

// Most counts of skipped and NaN iterations are 0.
std::optional<ReadNumber> QuickNumber(std::string_view text) {
  const bool one_digit = text.size() > 1 && IsDigit(text[0]) && text[1] == ' ';
  return one_digit ? ReadNumber{static_cast<double>(text[0] - '0'), 1} : NumberAt(text);
}

}  // namespace

void IterationPattern::Learn(std::string_view text) {
  pieces_.clear();
  size_t begin = 0;
  bool first = true;
  const bool learnt = VisitFields(text, [&](size_t at, size_t end, IterationField field) {
    if (std::exchange(first, false)) prefix_bytes_ = std::min(FindWord(text, "iteration"), at);
    std::string_view words = text.substr(begin, at - begin);
    while (!words.empty() && words.back() == ' ') words.remove_suffix(1);
    pieces_.push_back({std::string(words), field});
    begin = end;
  });
  tail_ = text.substr(begin);
  const bool has_batch = std::ranges::find(pieces_, IterationField::kBatch, &Piece::field) != pieces_.end();
  for (Piece& piece : pieces_)
    if (!IsNeeded(piece.field, has_batch)) piece.field = IterationField::kNone;
  if (!learnt || pieces_.size() > kMaxPieces) pieces_.clear();
}

bool IterationPattern::Match(std::string_view text, IterationLine& line) const {
  if (pieces_.empty()) return false;
  line = {};
  size_t at = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const std::string& words = pieces_[i].words;
    if (text.size() - at < words.size()) return false;
    const char* here = text.data() + at;
    if (i == 0 ? !SamePrefix(here, words) : std::memcmp(here, words.data(), words.size()) != 0) return false;
    at = SkipBlanks(text, at + words.size());
    size_t end = at;
    if (pieces_[i].field == IterationField::kNone) {
      while (end < text.size() && IsNumberCharacter(text[end])) ++end;
    } else {
      const auto number = QuickNumber(text.substr(at));
      if (!number) return false;
      end = at + number->length;
      SetField(pieces_[i].field, number->value, line);
    }
    if (end == at) return false;
    at = end;
  }
  return text.substr(at) == tail_ && line.iteration >= 0;
}

}  // namespace cairn
