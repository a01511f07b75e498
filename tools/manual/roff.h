// A command's manual page in roff with the macros of man(7), for man and groff.
#pragma once

#include <string>

#include "tools/manual/command.h"

namespace cairn::manual {

// Section 1; `version` is the program's ("cairn 0.1.0").
std::string RoffPage(const Command& command, const std::string& version);

// Escapes text for a line of roff, so that nothing in it is read as a request, an escape or a typographic
// sign.
std::string RoffText(const std::string& text);

}  // namespace cairn::manual
