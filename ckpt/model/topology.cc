#include "ckpt/model/topology.h"

#include <fmt/ranges.h>

#include <cstdint>
#include <numeric>

namespace cairn {

int Topology::size(Axis axis) const {
  const int expert_tp = etp > 0 ? etp : tp;
  switch (axis) {
    case Axis::kTp:
      return tp;
    case Axis::kEtp:
      return expert_tp;
    case Axis::kEp:
      return ep;
    case Axis::kDp:
      return dp;
    case Axis::kEdp:
      return stage_size() / (expert_tp * ep);
    case Axis::kPp:
      return pp;
  }
  return 1;
}

int Topology::Stride(Axis axis) const {
  switch (axis) {
    case Axis::kTp:
    case Axis::kEtp:
      return 1;
    case Axis::kEp:
      return size(Axis::kEtp);
    case Axis::kDp:
      return tp;
    case Axis::kEdp:
      return size(Axis::kEtp) * ep;
    case Axis::kPp:
      return stage_size();
  }
  return 1;
}

std::vector<int> Topology::GroupOf(int rank, Axis axis) const {
  std::vector<int> group(size(axis));
  for (int i = 0; i < size(axis); ++i) group[i] = Moved(rank, axis, i);
  return group;
}

std::string ToString(const Topology& t) {
  std::string text = fmt::format("TP={} PP={} DP={} ZeRO={}", t.tp, t.pp, t.dp, t.zero);
  if (t.virtual_stages != 1) text += fmt::format(" VP={}", t.virtual_stages);
  if (!t.layers_per_stage.empty()) text += fmt::format(" layers={}", fmt::join(t.layers_per_stage, ","));
  if (t.ep != 1) text += fmt::format(" EP={}", t.ep);
  if (t.etp != 0) text += fmt::format(" ETP={}", t.etp);
  return text;
}

Status Validate(const Topology& t) {
  for (int size : {t.tp, t.pp, t.dp, t.virtual_stages, t.ep, t.etp == 0 ? t.tp : t.etp})
    if (size < 1 || size > kMaxWorld)
      return InvalidArgument("topology {}: sizes must be at least 1", ToString(t));
  if (int64_t{t.tp} * t.pp > kMaxWorld || int64_t{t.tp} * t.pp * t.dp > kMaxWorld)
    return InvalidArgument("topology {}: it has more than {} ranks", ToString(t), kMaxWorld);
  const int64_t replica = int64_t{t.size(Axis::kEtp)} * t.ep;  // ranks that hold all experts of a stage
  if (t.stage_size() % replica != 0)
    return InvalidArgument(
        "topology {}: {} ranks of a stage are not a multiple of EP * ETP = {}; DP must be a multiple of {}",
        ToString(t), t.stage_size(), replica, replica / std::gcd<int64_t>(t.tp, replica));
  if (t.zero < 0 || t.zero > 3) return InvalidArgument("topology {}: the ZeRO stage is 0 to 3", ToString(t));
  const int64_t chunks = int64_t{t.pp} * t.virtual_stages;
  if (chunks > kMaxWorld) return InvalidArgument("topology {}: more than {} stages", ToString(t), kMaxWorld);
  if (!t.layers_per_stage.empty() && static_cast<int64_t>(t.layers_per_stage.size()) != chunks)
    return InvalidArgument("topology {}: it has {} layer counts for {} stages; give one per stage",
                           ToString(t), t.layers_per_stage.size(), chunks);
  for (int layers : t.layers_per_stage)
    if (layers < 0 || layers > kMaxWorld)
      return InvalidArgument("topology {}: a stage cannot have {} layers", ToString(t), layers);
  return OkStatus();
}

}  // namespace cairn
