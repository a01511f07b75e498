#include "tools/archive/tar/sidecar.h"

#include "ckpt/base/digest.h"

namespace cairn {

std::string SidecarText(const nlohmann::json& value) {
  return value.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string SignedSidecarText(nlohmann::json root) {
  root["digest"] = ToHex(DigestOf(SidecarText(root)));
  return SidecarText(root);
}

}  // namespace cairn
