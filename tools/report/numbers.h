// Reads numbers in log lines: "9000.1", "6.931472E+00", "nan", "-inf". It is fast because a log of gigabytes
// contains little else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

inline constexpr auto npos = std::string_view::npos;

struct ReadNumber {
  double value = 0;
  size_t length = 0;  // characters that it took
};

// The number that `text` starts with. The value is the double nearest to what is written.
std::optional<ReadNumber> NumberAt(std::string_view text);

// The same after blanks, and only if it is a whole number below 2^53.
std::optional<int64_t> CountAt(std::string_view text);

// `text` without blanks (space, tab) at its ends.
std::string_view Trim(std::string_view text);

// Whether two texts differ in nothing but the case of ASCII letters.
bool SameWord(std::string_view a, std::string_view b);

// Where `word` (lower case) starts in `text`, in any case; npos if it is not there.
size_t FindWord(std::string_view text, std::string_view word, size_t from = 0);

inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }
inline char LowerCase(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
inline bool IsLetter(char c) { return LowerCase(c) >= 'a' && LowerCase(c) <= 'z'; }

}  // namespace cairn
