// A list of SHA-256 sums as `sha256sum` writes and checks it: "HEX  NAME" a line. A name with a backslash or
// a line break is escaped, and its line begins with a backslash; a line that begins with # is a comment.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

inline constexpr std::string_view kSha256SumsName = "SHA256SUMS";

struct Sha256Sum {
  std::string name;
  std::string digest;  // 64 lower-case hex digits
};

// A line of the list, with its end.
std::string Sha256Line(std::string_view digest, std::string_view name);

// Errors: Corrupt naming the first line that is not what sha256sum writes.
Result<std::vector<Sha256Sum>> ParseSha256Sums(std::string_view text);

// A name as the list escapes it, and back.
std::string EscapeForSums(std::string_view name);
std::string UnescapeFromSums(std::string_view text);

}  // namespace cairn
