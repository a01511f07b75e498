#include "tools/cli/printable.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "ckpt/base/utf8.h"

namespace cairn {
namespace {

// `character`: one of UTF-8.
bool IsControl(std::string_view character, Lines lines) {
  if (character == "\n") return lines == Lines::kOne;
  const auto first = static_cast<uint8_t>(character[0]);
  if (first == 0xc2) return static_cast<uint8_t>(character[1]) < 0xa0;  // C1
  return first < 0x20 || first == 0x7f;
}

bool ShowsColour(int descriptor) {
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  return (no_color == nullptr || *no_color == '\0') && terminal != nullptr &&
         std::string_view(terminal) != "dumb" && ::isatty(descriptor) == 1;
}

}  // namespace

std::string Printable(std::string text, Lines lines) {
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = std::string_view(text).substr(i);
    const size_t length = Utf8Length(rest);
    const bool shown = length > 0 && !IsControl(rest.substr(0, length), lines);
    if (!shown) text[i] = '?';
    i += shown ? length : 1;
  }
  return text;
}

std::string ShortLine(std::string text) {
  constexpr size_t kMost = 2000, kEnd = 500;
  text = Printable(std::move(text), Lines::kOne);
  if (text.size() <= kMost) return text;
  const auto inside = [&](size_t at) {
    return (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80;
  };  // of a letter
  size_t head = kMost - kEnd, tail = text.size() - kEnd;
  while (inside(head)) --head;
  while (inside(tail)) ++tail;
  return fmt::format("{} [... {} bytes ...] {}", text.substr(0, head), tail - head, text.substr(tail));
}

std::string Painted(std::string text, Tone tone, int descriptor) {
  if (tone == Tone::kPlain || !ShowsColour(descriptor)) return text;
  const int code = tone == Tone::kGood ? 32 : tone == Tone::kNote ? 33 : 31;
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

}  // namespace cairn
