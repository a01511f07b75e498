// Reads numbers and words in log lines: "9000.1", "6.931472E+00", "nan", "-inf".
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace cairn {

inline constexpr auto npos = std::string_view::npos;
inline constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

struct ReadNumber {
  double value = 0;
  size_t length = 0;  // characters of the text
};

// The number that `text` starts with. The value is the double nearest to the decimal.
std::optional<ReadNumber> NumberAt(std::string_view text);

// The same after blanks, if it is a whole number from 0 to 2^53.
std::optional<int64_t> CountAt(std::string_view text);

// The same with a value for no number.
double NumberOf(std::string_view text);  // kNoNumber
int64_t CountOf(std::string_view text);  // -1

// The text after the first `word`, trimmed; empty if the word is missing.
std::string_view After(std::string_view text, std::string_view word);

// `text` without blanks (space, tab) at its ends.
std::string_view Trim(std::string_view text);

// True if two texts differ only in the case of ASCII letters.
bool SameWord(std::string_view a, std::string_view b);

// The place of `word` (lower case) in `text`, in any case; npos if it is missing.
size_t FindWord(std::string_view text, std::string_view word, size_t from = 0);

inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }
inline char LowerCase(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
inline bool IsLetter(char c) { return LowerCase(c) >= 'a' && LowerCase(c) <= 'z'; }
inline bool IsWordCharacter(char c) { return IsLetter(c) || IsDigit(c) || c == '_'; }

}  // namespace cairn
