// JSON texts of ours that carry their own digest: an attacker who can write the file can write that too.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/base/digest.h"

namespace cairn {

// Canonical and with the digest that its bytes should have, if it is an object and not so deep that this
// program could not print it.
inline std::optional<std::string> SignedJson(std::string_view text) {
  bool deep = false;
  const auto shallow = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    return !(deep |= depth > 200);
  };
  nlohmann::json root = nlohmann::json::parse(text, shallow, /*allow_exceptions=*/false);
  if (deep || !root.is_object()) return std::nullopt;
  root.erase("digest");
  const auto dump = [&] { return root.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"; };
  root["digest"] = ToHex(DigestOf(dump()));
  return dump();
}

}  // namespace cairn
