// The characters that stand for bytes in the vocabulary of a byte-level BPE: printable ones for themselves,
// the others from U+0100 on. Source: bytes_to_unicode of GPT-2's encoder.py.
#pragma once

#include <string>

namespace cairn {

// UTF-8 of the character that stands for `byte`, 0 to 255.
inline std::string ByteCharacter(int byte) {
  const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !printable(b);
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

}  // namespace cairn
