#include "ckpt/topology.h"

#include <cstdint>

namespace cairn {

std::string ToString(const Topology& t) {
  return fmt::format("TP={} PP={} DP={} ZeRO={}", t.tp, t.pp, t.dp, t.zero);
}

Status Validate(const Topology& t) {
  for (int size : {t.tp, t.pp, t.dp})
    if (size < 1 || size > kMaxWorld)
      return InvalidArgument("topology {}: sizes must be at least 1", ToString(t));
  if (int64_t{t.tp} * t.pp > kMaxWorld || int64_t{t.tp} * t.pp * t.dp > kMaxWorld)
    return InvalidArgument("topology {}: more than {} ranks", ToString(t), kMaxWorld);
  if (t.zero < 0 || t.zero > 3) return InvalidArgument("topology {}: the ZeRO stage is 0 to 3", ToString(t));
  return OkStatus();
}

}  // namespace cairn
