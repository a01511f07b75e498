// Text that a terminal shows without obeying control characters, and words in colour.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace cairn {

enum class Lines { kMany, kOne };

// Names out of files may hold any bytes: control characters and those that are not UTF-8 become "?"; in one
// line also its end.
std::string Printable(std::string text, Lines lines = Lines::kMany);

// One line, whose middle is left out if it is longer than a screen, because the remedy is at its end.
std::string ShortLine(std::string text);

enum class Tone { kPlain, kGood, kNote, kBad };

// `text`, printable already, as shown on stdout or stderr (a descriptor): in colour on a terminal, unless
// NO_COLOR (https://no-color.org) or TERM=dumb turn that off.
std::string Painted(std::string text, Tone tone, int descriptor);

// One line on stdout, made printable, in colour on a terminal.
template <typename... Args>
void PrintLineIn(Tone tone, fmt::format_string<Args...> format, Args&&... args) {
  constexpr int kStdout = 1;
  fmt::print("{}\n", Painted(Printable(fmt::format(format, std::forward<Args>(args)...), Lines::kOne), tone,
                             kStdout));
}
template <typename... Args>
void PrintLine(fmt::format_string<Args...> format, Args&&... args) {
  PrintLineIn(Tone::kPlain, format, std::forward<Args>(args)...);
}

}  // namespace cairn
