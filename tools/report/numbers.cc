// A decimal of at most 19 digits whose digits, as an integer, are below 2^53 and whose power of ten is at
// most 10^22 is one division or multiplication of two exact doubles, and so rounded right (Clinger 1990). Log
// lines hold such numbers only; others go to std::from_chars.
#include "tools/report/numbers.h"

#include <charconv>
#include <cmath>
#include <limits>

namespace cairn {
namespace {

constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
constexpr int kMaxPower = 22;
constexpr uint64_t kExactIntegers = uint64_t{1} << 53;
constexpr int kMaxDigits = 19;  // that fit uint64_t

struct DigitRun {
  uint64_t value = 0;
  int count = 0;      // of digits read
  int after_dot = 0;  // of these
  size_t end = 0;
};

// DigitRun with at most one dot among them, from `at` on.
DigitRun ReadDigits(std::string_view text, size_t at) {
  DigitRun digits;
  bool dot = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (IsDigit(c)) {
      if (digits.count < kMaxDigits) digits.value = digits.value * 10 + static_cast<uint64_t>(c - '0');
      ++digits.count;
      digits.after_dot += dot;
    } else if (c == '.' && !dot) {
      dot = true;
    } else {
      break;
    }
  }
  digits.end = at;
  return digits;
}

// The exponent at `at` ("E+05"); `at` moves to its end. 0 if there is none.
int ReadExponent(std::string_view text, size_t& at) {
  if (at >= text.size() || LowerCase(text[at]) != 'e') return 0;
  size_t k = at + 1;
  const bool negative = k < text.size() && text[k] == '-';
  if (k < text.size() && (text[k] == '-' || text[k] == '+')) ++k;
  if (k >= text.size() || !IsDigit(text[k])) return 0;
  int exponent = 0;
  for (; k < text.size() && IsDigit(text[k]); ++k)
    if (exponent < 100000) exponent = exponent * 10 + (text[k] - '0');
  at = k;
  return negative ? -exponent : exponent;
}

std::optional<ReadNumber> NamedNumber(std::string_view text, size_t at, bool negative) {
  for (const auto& [word, value] : {std::pair{"infinity", std::numeric_limits<double>::infinity()},
                                    std::pair{"inf", std::numeric_limits<double>::infinity()},
                                    std::pair{"nan", std::numeric_limits<double>::quiet_NaN()}}) {
    const std::string_view name = word;
    if (text.size() - at < name.size() || !SameWord(text.substr(at, name.size()), name)) continue;
    if (at + name.size() < text.size() && IsLetter(text[at + name.size()])) continue;
    return ReadNumber{negative ? -value : value, at + name.size()};
  }
  return std::nullopt;
}

double Slowly(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range)
    return text.find("e-") != text.npos || text.find("E-") != text.npos
               ? 0
               : std::numeric_limits<double>::infinity();
  return value;
}

}  // namespace

std::optional<ReadNumber> NumberAt(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const bool negative = text[0] == '-';
  const size_t start = negative || text[0] == '+' ? 1 : 0;
  const DigitRun digits = ReadDigits(text, start);
  if (digits.count == 0) return NamedNumber(text, start, negative);
  size_t end = digits.end;
  const int power = ReadExponent(text, end) - digits.after_dot;
  double value;
  if (digits.count <= kMaxDigits && digits.value < kExactIntegers && std::abs(power) <= kMaxPower) {
    value = static_cast<double>(digits.value);
    value = power < 0 ? value / kPowers[-power] : value * kPowers[power];
  } else {
    value = Slowly(text.substr(start, end - start));
  }
  return ReadNumber{negative ? -value : value, end};
}

std::optional<int64_t> CountAt(std::string_view text) {
  const std::string_view trimmed = Trim(text);
  const auto number = NumberAt(trimmed);
  if (!number || !(number->value >= 0) || number->value >= static_cast<double>(kExactIntegers))
    return std::nullopt;
  const auto whole = static_cast<int64_t>(number->value);
  return static_cast<double>(whole) == number->value ? std::optional(whole) : std::nullopt;
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool SameWord(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (LowerCase(a[i]) != LowerCase(b[i])) return false;
  return true;
}

size_t FindWord(std::string_view text, std::string_view word, size_t from) {
  if (word.size() > text.size()) return std::string_view::npos;
  const char upper = word[0] >= 'a' && word[0] <= 'z' ? static_cast<char>(word[0] - 32) : word[0];
  for (size_t at = from; at <= text.size() - word.size(); ++at)
    if ((text[at] == word[0] || text[at] == upper) && SameWord(text.substr(at, word.size()), word)) return at;
  return std::string_view::npos;
}

}  // namespace cairn
