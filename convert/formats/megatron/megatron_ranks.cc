#include "convert/formats/megatron/megatron_ranks.h"

#include <algorithm>

#include "ckpt/base/parse_number.h"

namespace cairn {

std::optional<MegatronRank> ParseMegatronRank(const std::string& name) {
  constexpr std::string_view kPrefix = "mp_rank_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::string_view rest = std::string_view(name).substr(kPrefix.size());
  MegatronRank rank;
  for (int* number : {&rank.tp, &rank.pp, &rank.ep}) {
    if (number != &rank.tp && !rest.starts_with('_')) break;
    if (number != &rank.tp) rest.remove_prefix(1);
    const auto value = TakeNumber<int>(rest);
    if (!value || *value < 0) return std::nullopt;
    *number = *value;
  }
  if (!rest.empty()) return std::nullopt;
  rank.file = name + "/model_optim_rng.pt";
  return rank;
}

bool HoldsMegatronRanks(FileSystem& fs, const std::string& directory) {
  const auto names = fs.List(directory);
  return names.ok() &&
         std::ranges::any_of(*names, [](const auto& n) { return ParseMegatronRank(n).has_value(); });
}

Status CheckComplete(const std::vector<MegatronRank>& ranks, const Topology& topology) {
  const bool whole = topology.size(Axis::kEtp) == 1;  // experts
  const auto has = [&](int pp, std::optional<int> tp, std::optional<int> ep) {
    return std::ranges::any_of(ranks, [&](const MegatronRank& rank) {
      return rank.pp == pp && rank.tp == tp.value_or(rank.tp) && rank.ep == ep.value_or(rank.ep);
    });
  };
  for (int pp = 0; pp < topology.pp; ++pp)
    for (int tp = 0; tp < topology.tp; ++tp)
      for (int ep = 0; ep < topology.ep; ++ep) {
        if (whole ? has(pp, tp, {}) && has(pp, {}, ep) : has(pp, tp, ep)) continue;
        const bool parted = topology.ep > 1;
        return NotFound(
            "the directory of TP rank {}{} of pipeline stage {} is missing; its args say TP={} PP={}{}", tp,
            parted ? fmt::format(" and EP rank {}", ep) : "", pp, topology.tp, topology.pp,
            parted ? fmt::format(" EP={}", topology.ep) : "");
      }
  return OkStatus();
}

}  // namespace cairn
