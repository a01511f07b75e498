#include "ckpt/base/sidecar_text.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "ckpt/base/digest.h"
#include "ckpt/base/utf8.h"

namespace cairn {

using nlohmann::json;

std::string SidecarText(const json& value) {
  return value.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string SignedSidecarText(json root) {
  root["digest"] = ToHex(DigestOf(SidecarText(root)));
  return SidecarText(root);
}

std::string EscapeName(std::string_view name) {
  std::string text;
  while (!name.empty()) {
    const size_t bytes = name[0] == '\\' ? 0 : Utf8Length(name);
    if (bytes > 0)
      text += name.substr(0, bytes);
    else
      text += name[0] == '\\' ? "\\\\" : fmt::format("\\x{:02x}", static_cast<uint8_t>(name[0]));
    name.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return text;
}

Result<std::string> UnescapeName(std::string_view text) {
  std::string name;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '\\') {
      name += text[at];
      continue;
    }
    if (text.substr(at + 1, 1) == "\\") {
      name += text[++at];
      continue;
    }
    uint8_t byte = 0;
    const char* const digits = text.data() + at + 2;
    if (text.size() - at < 4 || text[at + 1] != 'x' ||
        std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2)
      return Corrupt("names '{}', which is not a valid escaped name", text);
    name += static_cast<char>(byte);
    at += 3;
  }
  if (EscapeName(name) != text) return Corrupt("names '{}', which is not a valid escaped name", text);
  return name;
}

}  // namespace cairn
