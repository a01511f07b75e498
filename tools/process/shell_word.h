// Quoting for a command line that a shell will read.
#pragma once

#include <string>

namespace cairn {

// `text` in single quotes: it's -> 'it'\''s'.
std::string ShellQuoted(const std::string& text);

// `text` as one word. Text of plain characters stays as it is.
std::string ShellWord(const std::string& text);

}  // namespace cairn
