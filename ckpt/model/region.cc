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
  uint64_t elements = 0;
  ForEachMeeting(a.box, a.range, *meet, [&](const Segment&, const Box& part) {
    ForEachMeeting(b.box, b.range, part,
                   [&](const Segment&, const Box& common) { elements += common.Volume(); });
  });
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
