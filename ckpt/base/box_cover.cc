#include "ckpt/base/box_cover.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace cairn {
namespace {

uint64_t BeginRow(const Box& box) { return box.rank() == 0 ? 0 : box.offset[0]; }
uint64_t EndRow(const Box& box) { return box.rank() == 0 ? 1 : box.offset[0] + box.extent[0]; }

}  // namespace

std::optional<std::pair<size_t, size_t>> FindOverlap(std::span<const Box> boxes) {
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return BeginRow(boxes[i]); });
  for (size_t i = 0; i < order.size(); ++i)
    for (size_t j = i + 1; j < order.size() && BeginRow(boxes[order[j]]) < EndRow(boxes[order[i]]); ++j)
      if (Intersect(boxes[order[i]], boxes[order[j]])) return std::pair(order[i], order[j]);
  return std::nullopt;
}

}  // namespace cairn
