// Words in colour on a terminal: NO_COLOR (https://no-color.org) and TERM=dumb turn it off.
#pragma once

#include <string>

namespace cairn {

enum class Tone { kPlain, kGood, kNote, kBad };

// `text`, printable already, as stdout or stderr (a descriptor) shows it.
std::string Painted(std::string text, Tone tone, int descriptor);

}  // namespace cairn
