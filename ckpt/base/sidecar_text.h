// Names of files as text: names may have any bytes, but text must be UTF-8. Sidecars of archives and seals
// write names, link targets and paths like this.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "ckpt/base/status.h"

namespace cairn {

std::string SignedSidecarText(nlohmann::json root);
std::string SidecarText(const nlohmann::json& value);  // one text for one value, without a digest

// "\\" stands for a backslash, "\xff" for a byte that is not part of valid UTF-8.
std::string EscapeName(std::string_view name);
// The inverse of EscapeName(). Errors: Corrupt.
Result<std::string> UnescapeName(std::string_view text);

}  // namespace cairn
