#include "tools/check/piece_ranks.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/base/parse_number.h"
#include "ckpt/model/placement.h"

namespace cairn {

PieceRanks::PieceRanks(const StepCatalog& catalog, const Topology& topology, bool placed)
    : catalog_(catalog), world_(topology.world()) {
  if (!placed) return;
  const std::vector<ParameterSpec> specs = catalog.Parameters();
  std::map<std::vector<int>, RankLayout> layouts;  // by the coordinates that slices depend on
  for (int rank = 0; rank < world_; ++rank) {
    std::vector<int> place;
    for (const Axis axis : {Axis::kTp, Axis::kEtp, Axis::kEp, Axis::kPp})
      place.push_back(topology.Coordinate(rank, axis));
    auto layout = layouts.find(place);
    if (layout == layouts.end()) {
      Result<RankLayout> made = LayoutOf(specs, topology, rank);
      if (!made.ok()) {  // placed by another rule than this
        held_.clear();
        return;
      }
      layout = layouts.emplace(place, std::move(*made)).first;
    }
    for (const LocalParameter& local : layout->second.parameters) {
      std::vector<HeldBox>& boxes = held_[specs[local.index].name];
      auto same = std::ranges::find(boxes, local.box, &HeldBox::box);
      if (same == boxes.end()) same = boxes.insert(same, {local.box, {}});
      same->ranks.push_back(rank);
    }
  }
}

std::vector<int> PieceRanks::Of(const Piece& piece) const {
  std::vector<int> ranks;
  const TensorEntry& tensor = catalog_.tensors[piece.tensor];
  const auto held = held_.find(tensor.spec.name);
  if (held != held_.end() && !IsOpaque(tensor.role) &&
      held->second.front().box.rank() == tensor.spec.shape.rank()) {
    for (const HeldBox& box : held->second)
      if (Intersect(box.box, piece.box)) ranks.insert(ranks.end(), box.ranks.begin(), box.ranks.end());
    std::ranges::sort(ranks);
    return ranks;
  }
  std::string_view number = catalog_.files[piece.file];
  number.remove_prefix(std::min(number.size(), std::string_view("shard-").size()));
  if (const auto writer = TakeNumber<int>(number); writer && *writer < world_) ranks.push_back(*writer);
  return ranks;
}

std::string RankList(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0, last = 0; i < ranks.size(); i = last + 1) {
    for (last = i; last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1;) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    if (last > i) text += fmt::format("-{}", ranks[last]);
  }
  return text.empty() ? "-" : text;
}

}  // namespace cairn
