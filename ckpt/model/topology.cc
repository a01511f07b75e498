#include "ckpt/model/topology.h"

#include <fmt/ranges.h>

#include <cstdint>

namespace cairn {

std::string ToString(const Topology& t) {
  std::string text = fmt::format("TP={} PP={} DP={} ZeRO={}", t.tp, t.pp, t.dp, t.zero);
  if (t.virtual_stages != 1) text += fmt::format(" VP={}", t.virtual_stages);
  if (!t.layers_per_stage.empty()) text += fmt::format(" layers={}", fmt::join(t.layers_per_stage, ","));
  return text;
}

Status Validate(const Topology& t) {
  for (int size : {t.tp, t.pp, t.dp, t.virtual_stages})
    if (size < 1 || size > kMaxWorld)
      return InvalidArgument("topology {}: sizes must be at least 1", ToString(t));
  if (int64_t{t.tp} * t.pp > kMaxWorld || int64_t{t.tp} * t.pp * t.dp > kMaxWorld)
    return InvalidArgument("topology {}: more than {} ranks", ToString(t), kMaxWorld);
  if (t.zero < 0 || t.zero > 3) return InvalidArgument("topology {}: the ZeRO stage is 0 to 3", ToString(t));
  const int64_t chunks = int64_t{t.pp} * t.virtual_stages;
  if (chunks > kMaxWorld) return InvalidArgument("topology {}: more than {} stages", ToString(t), kMaxWorld);
  if (!t.layers_per_stage.empty() && static_cast<int64_t>(t.layers_per_stage.size()) != chunks)
    return InvalidArgument("topology {}: {} layer counts for {} stages; give one for each", ToString(t),
                           t.layers_per_stage.size(), chunks);
  for (int layers : t.layers_per_stage)
    if (layers < 0 || layers > kMaxWorld)
      return InvalidArgument("topology {}: a stage cannot have {} layers", ToString(t), layers);
  return OkStatus();
}

}  // namespace cairn
