#include "tools/cli/printable.h"

#include <cstdint>

namespace cairn {

std::string Printable(std::string text, Lines lines) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xc2 ? 0
                          : lead < 0xe0 ? 2
                          : lead < 0xf0 ? 3
                          : lead < 0xf5 ? 4
                                        : 0;
    bool valid = length > 0 && length <= text.size() - i &&
                 (lead >= 0x20 || (lead == '\n' && lines == Lines::kMany)) && lead != 0x7f;
    for (size_t k = 1; valid && k < length; ++k) valid = (static_cast<uint8_t>(text[i + k]) & 0xc0) == 0x80;
    if (valid && lead == 0xc2 && static_cast<uint8_t>(text[i + 1]) < 0xa0) valid = false;  // C1 controls
    if (!valid) text[i] = '?';
    i += valid ? length : 1;
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

}  // namespace cairn
