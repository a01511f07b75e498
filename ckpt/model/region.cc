#include "ckpt/model/region.h"

namespace cairn {
namespace {

bool IsWhole(const Region& region) {
  return region.range.begin == 0 && region.range.end == region.box.Volume();
}

}  // namespace

uint64_t CommonElements(const Region& a, const Region& b) {
  const std::optional<Box> meet = Intersect(a.box, b.box);
  if (!meet) return 0;
  if (IsWhole(a) && IsWhole(b)) return meet->Volume();
  if (IsWhole(a)) return CommonElements(b, a);
  uint64_t elements = 0;
  for (const Segment& segment : Decompose(a.box, a.range)) {
    const std::optional<Box> part = Intersect(segment.box, *meet);
    if (!part) continue;
    if (IsWhole(b)) {
      elements += part->Volume();
      continue;
    }
    for (const Segment& other : Decompose(b.box, b.range))
      if (const std::optional<Box> common = Intersect(*part, other.box)) elements += common->Volume();
  }
  return elements;
}

}  // namespace cairn
