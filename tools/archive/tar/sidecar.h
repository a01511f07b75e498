// The text of a sidecar of a store: JSON that carries its own digest, so that any changed byte is caught.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace cairn {

// One text for one value.
std::string SidecarText(const nlohmann::json& value);
// The same with the digest of what it would be without one.
std::string SignedSidecarText(nlohmann::json root);

}  // namespace cairn
