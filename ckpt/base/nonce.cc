#include "ckpt/base/nonce.h"

#include <fmt/format.h>

#include <cstdint>
#include <random>

namespace cairn {

std::string NewNonce() {
  std::random_device random;
  return fmt::format("{:08x}", static_cast<uint32_t>(random()));
}

}  // namespace cairn
