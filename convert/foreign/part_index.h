// Finds the parts of arrays that a box overlaps.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "ckpt/base/box_map.h"

namespace cairn {

// A part that a box overlaps, and their common box.
struct Meeting {
  const ArrayPart& part;
  Box common;
};

// Parts by their tensors or by their arrays. Those of one keep their order. They must outlive the index.
class PartIndex {
 public:
  explicit PartIndex(const std::vector<ArrayPart>& parts, uint32_t ArrayPart::*by = &ArrayPart::tensor)
      : parts_(parts), by_(by), order_(parts.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::stable_sort(order_, {}, [this](uint32_t index) { return parts_[index].*by_; });
  }
  size_t size() const { return order_.size(); }
  const ArrayPart& operator[](size_t index) const { return parts_[order_[index]]; }
  // The parts of this tensor, or array, are [first, second).
  std::pair<size_t, size_t> Of(uint32_t number) const {
    const auto own =
        std::ranges::equal_range(order_, number, {}, [this](uint32_t index) { return parts_[index].*by_; });
    return {own.begin() - order_.begin(), own.end() - order_.begin()};
  }
  // `box` and the common ones are of this tensor, or array.
  std::vector<Meeting> Meet(uint32_t number, const Box& box) const {
    std::vector<Meeting> meetings;
    const auto [first, last] = Of(number);
    for (size_t i = first; i < last; ++i) {
      const ArrayPart& part = (*this)[i];
      if (const auto common = Intersect(by_ == &ArrayPart::tensor ? part.box : part.in_array, box))
        meetings.push_back({part, *common});
    }
    return meetings;
  }

 private:
  const std::vector<ArrayPart>& parts_;
  uint32_t ArrayPart::*const by_;
  std::vector<uint32_t> order_;
};

}  // namespace cairn
