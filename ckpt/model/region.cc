#include "ckpt/model/region.h"

namespace cairn {
namespace {

bool IsWhole(const Region& region) {
  return region.range.begin == 0 && region.range.end == region.box.Volume();
}

// Calls `visit` for each common box.
template <typename Visit>
void ForEachCommon(const Region& a, const Region& b, Visit visit) {
  const std::optional<Box> meet = Intersect(a.box, b.box);
  if (!meet || meet->Volume() == 0) return;
  if (IsWhole(a) && IsWhole(b)) return visit(*meet);
  if (IsWhole(a)) return ForEachCommon(b, a, visit);
  for (const Segment& segment : Decompose(a.box, a.range)) {
    const std::optional<Box> part = Intersect(segment.box, *meet);
    if (!part) continue;
    if (IsWhole(b)) {
      visit(*part);
      continue;
    }
    for (const Segment& other : Decompose(b.box, b.range))
      if (const std::optional<Box> common = Intersect(*part, other.box)) visit(*common);
  }
}

}  // namespace

std::vector<Box> CommonBoxes(const Region& a, const Region& b) {
  std::vector<Box> boxes;
  ForEachCommon(a, b, [&](const Box& box) { boxes.push_back(box); });
  return boxes;
}

uint64_t CommonElements(const Region& a, const Region& b) {
  uint64_t elements = 0;
  ForEachCommon(a, b, [&](const Box& box) { elements += box.Volume(); });
  return elements;
}

FlatRange CommonRun(const Box& box, FlatRange range, const Box& block) {
  const std::optional<Box> common = Intersect(box, block);
  if (!common) return {range.begin, range.begin};
  const uint64_t first = FlatIndex(box, common->offset);
  const uint64_t begin = std::max(first, range.begin);
  return {begin, std::max(begin, std::min(first + common->Volume(), range.end))};
}

}  // namespace cairn
