#include "tools/report/numbers.h"

#include <algorithm>
#include <charconv>

namespace cairn {

std::optional<ReadNumber> NumberAt(std::string_view text) {
  const bool negative = text.starts_with('-');
  const char* const first = text.data() + (negative || text.starts_with('+'));
  const char* const last = text.data() + text.size();
  if (first == last || *first == '-') return std::nullopt;  // from_chars accepts a sign itself
  double value = 0;
  const auto [end, error] = std::from_chars(first, last, value);
  if (error == std::errc::invalid_argument) return std::nullopt;
  if (IsLetter(*first) && end != last && IsLetter(*end)) return std::nullopt;  // "info", "nano"
  const auto length = static_cast<size_t>(end - text.data());
  if (error == std::errc::result_out_of_range) {
    const std::string_view number = text.substr(0, length);
    const bool tiny = number.find("e-") != npos || number.find("E-") != npos;
    value = tiny ? 0 : std::numeric_limits<double>::infinity();
  }
  return ReadNumber{negative ? -value : value, length};
}

std::optional<int64_t> CountAt(std::string_view text) {
  constexpr double kExactIntegers = int64_t{1} << 53;
  const auto number = NumberAt(Trim(text));
  if (!number || !(number->value >= 0) || number->value >= kExactIntegers) return std::nullopt;
  const auto whole = static_cast<int64_t>(number->value);
  return static_cast<double>(whole) == number->value ? std::optional(whole) : std::nullopt;
}

double NumberOf(std::string_view text) {
  const auto number = NumberAt(Trim(text));
  return number ? number->value : kNoNumber;
}

int64_t CountOf(std::string_view text) { return CountAt(text).value_or(-1); }

std::string_view After(std::string_view text, std::string_view word) {
  const size_t at = text.find(word);
  return at == npos ? std::string_view() : Trim(text.substr(at + word.size()));
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool SameWord(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, LowerCase, LowerCase);
}

size_t FindWord(std::string_view text, std::string_view word, size_t from) {
  if (word.size() > text.size()) return npos;
  const char upper = word[0] >= 'a' && word[0] <= 'z' ? static_cast<char>(word[0] - 32) : word[0];
  for (size_t at = from; at <= text.size() - word.size(); ++at)
    if ((text[at] == word[0] || text[at] == upper) && SameWord(text.substr(at, word.size()), word)) return at;
  return npos;
}

}  // namespace cairn
