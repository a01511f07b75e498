// Text that a terminal shows and does not obey.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace cairn {

enum class Lines { kMany, kOne };

// Names out of files may hold any bytes: control characters and those that are not UTF-8 become "?"; of one
// line so does its end.
std::string Printable(std::string text, Lines lines = Lines::kMany);

// One line on stdout, printable whatever is in it.
template <typename... Args>
void PrintLine(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print("{}\n", Printable(fmt::format(format, std::forward<Args>(args)...), Lines::kOne));
}

}  // namespace cairn
