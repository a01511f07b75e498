// Elements of a tensor that lie in one place: those of a piece, of a part of an array, or those that a rank
// reads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ckpt/base/box.h"

namespace cairn {

struct Region {
  uint32_t tensor = 0;  // into a table of tensors
  uint32_t file = 0;    // that holds it, or will; into a list of files or ranks
  uint64_t offset = 0;  // bytes, of its first element in the file, if known
  Box box;
  FlatRange range;  // of the row-major order of `box`: the elements that the region has

  static Region Whole(uint32_t tensor, uint32_t file, const Box& box) {
    return {.tensor = tensor, .file = file, .box = box, .range = {0, box.Volume()}};
  }
};

// The number of elements that two regions of one tensor have in common.
uint64_t CommonElements(const Region& a, const Region& b);

// Calls visit(segment, common) for the segments of elements `range` of `box` (Decompose) that meet `other`,
// with the box that they have in common.
template <typename Visit>
void ForEachMeeting(const Box& box, FlatRange range, const Box& other, Visit visit) {
  if (!Intersect(box, other)) return;
  for (const Segment& segment : Decompose(box, range))
    if (const std::optional<Box> common = Intersect(segment.box, other)) visit(segment, *common);
}

// Elements `range` of `box` that are also in `block`, as a range of the row-major order of `box`; empty if
// there are none. Requires that the block is contiguous in its tensor (convert/stream/block_stream.h): its
// common part with any box is then contiguous in that box.
FlatRange CommonRun(const Box& box, FlatRange range, const Box& block);

// A list of regions, each made on access: there may be hundreds of thousands.
class Regions {
 public:
  virtual ~Regions() = default;
  virtual size_t size() const = 0;
  virtual Region operator[](size_t index) const = 0;
  // Those of tensor `tensor` are [first, second).
  virtual std::pair<size_t, size_t> OfTensor(uint32_t tensor) const = 0;
};

// Regions in memory.
class RegionList final : public Regions {
 public:
  // In any order; they are sorted by tensor, stably.
  explicit RegionList(std::vector<Region> regions) : regions_(std::move(regions)) {
    std::ranges::stable_sort(regions_, {}, &Region::tensor);
  }
  size_t size() const override { return regions_.size(); }
  Region operator[](size_t index) const override { return regions_[index]; }
  std::pair<size_t, size_t> OfTensor(uint32_t tensor) const override {
    const auto range = std::ranges::equal_range(regions_, tensor, {}, &Region::tensor);
    const auto first = static_cast<size_t>(range.begin() - regions_.begin());
    return {first, first + range.size()};
  }

 private:
  std::vector<Region> regions_;
};

}  // namespace cairn
