#include "ckpt/base/sha256_sums.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/base/split_text.h"

namespace cairn {
namespace {

constexpr size_t kSumDigits = 64;
constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";

}  // namespace

std::string EscapeForSums(std::string_view name) {
  std::string text;
  for (const char c : name)
    if (c == '\\')
      text += "\\\\";
    else if (c == '\n')
      text += "\\n";
    else if (c == '\r')
      text += "\\r";
    else
      text += c;
  return text;
}

std::string UnescapeFromSums(std::string_view text) {
  std::string name;
  for (size_t at = 0; at < text.size(); ++at) {
    const char next = text[at] == '\\' && at + 1 < text.size() ? text[++at] : '\0';
    name += next == 'n' ? '\n' : next == 'r' ? '\r' : next != '\0' ? next : text[at];
  }
  return name;
}

std::string Sha256Line(std::string_view digest, std::string_view name) {
  const std::string escaped = EscapeForSums(name);
  return fmt::format("{}{}  {}\n", escaped == name ? "" : "\\", digest, escaped);
}

Result<std::vector<Sha256Sum>> ParseSha256Sums(std::string_view text) {
  std::vector<Sha256Sum> sums;
  size_t number = 0;
  for (std::string_view line : SplitText(text, '\n')) {
    ++number;
    if (line.empty() || line.starts_with('#')) continue;
    const bool escaped = line.starts_with('\\');
    if (escaped) line.remove_prefix(1);
    const size_t digits = std::min(line.find_first_not_of(kHexDigits), line.size());
    const bool fits = digits == kSumDigits && line.size() > digits + 2 && line[digits] == ' ' &&
                      (line[digits + 1] == ' ' || line[digits + 1] == '*');
    if (!fits) return Corrupt("line {} is not what sha256sum writes", number);
    const std::string_view name = line.substr(digits + 2);
    std::string digest(line.substr(0, digits));
    std::ranges::transform(digest, digest.begin(), [](char c) {
      return c >= 'A' && c <= 'F' ? static_cast<char>(c + ('a' - 'A')) : c;
    });
    sums.push_back({escaped ? UnescapeFromSums(name) : std::string(name), std::move(digest)});
  }
  return sums;
}

}  // namespace cairn
