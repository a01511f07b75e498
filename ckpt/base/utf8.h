// Where a character of UTF-8 ends.
#pragma once

#include <cstddef>
#include <string_view>

namespace cairn {

// Bytes of the character that `text` begins with, 1 to 4. 0 if it begins with no valid one (no overlong
// forms, no surrogates, nothing beyond U+10FFFF: Unicode 15, table 3-7). Requires a non-empty text.
size_t Utf8Length(std::string_view text);
bool IsUtf8(std::string_view text);

}  // namespace cairn
