// Quoting for a command line that a shell will read.
#pragma once

#include <string>

namespace cairn {

// `text` as one word, in single quotes (it's -> 'it'\''s'). Text of plain characters stays as it is.
std::string ShellWord(const std::string& text);

}  // namespace cairn
