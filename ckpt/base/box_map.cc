// All boxes are seen with kMaxRank axes that count from the last, so that a rank is nothing special: an axis
// in front of a box's own has the offset 0 and the extent 1.

#include "ckpt/base/box_map.h"

#include <algorithm>

namespace cairn {
namespace {

// Those of axis `axis` from the last.
uint64_t ExtentOf(const Box& box, int axis) {
  return axis < box.rank() ? box.extent[box.rank() - 1 - axis] : 1;
}
uint64_t OffsetOf(const Box& box, int axis) {
  return axis < box.rank() ? box.offset[box.rank() - 1 - axis] : 0;
}

}  // namespace

Box BoxMap::ToArray(const Box& part) const {
  assert(Contains(box, part));
  Box found = in_array;
  for (int i = 0; i < found.rank(); ++i) {
    const int dim = found.rank() - 1 - i;
    found.offset[dim] += OffsetOf(part, axes[i]) - OffsetOf(box, axes[i]);
    found.extent[dim] = ExtentOf(part, axes[i]);
  }
  return found;
}

BoxMap BoxMap::Inverse() const {
  BoxMap inverse{in_array, box};
  for (uint8_t i = 0; i < kMaxRank; ++i) inverse.axes[axes[i]] = i;
  return inverse;
}

BoxMap BoxMap::Transposed() const {
  BoxMap other{box, {LastTwoSwapped(in_array.offset), LastTwoSwapped(in_array.extent)}, axes};
  std::swap(other.axes[0], other.axes[1]);
  return other;
}

bool BoxMap::Fits(const Dims& tensor, const Dims& array) const {
  if (!Contains(Box::Whole(tensor), box) || !Contains(Box::Whole(array), in_array) ||
      !std::ranges::is_permutation(axes, kSameAxes))
    return false;
  for (int i = 0; i < kMaxRank; ++i)
    if (ExtentOf(in_array, i) != ExtentOf(box, axes[i])) return false;
  return true;
}

BoxLoops LoopsOf(const BoxMap& map, const Box& common, const Box& tensor, const Box& array) {
  const Box place = map.ToArray(common);
  BoxLoops found{FlatIndex(array, place.offset), FlatIndex(tensor, common.offset), {}};
  std::array<uint64_t, kMaxRank> strides;  // of the tensor's axes
  uint64_t stride = 1;
  for (int i = 0; i < kMaxRank; ++i) {
    strides[i] = stride;
    stride *= ExtentOf(tensor, i);
  }
  stride = 1;
  for (int i = 0; i < place.rank(); ++i) {
    const Loop loop{ExtentOf(place, i), stride, strides[map.axes[i]]};
    stride *= ExtentOf(array, i);
    if (loop.count == 1) continue;
    if (Loop* inner = found.loops.empty() ? nullptr : &found.loops.back();
        inner && inner->count * inner->in_array == loop.in_array &&
        inner->count * inner->in_tensor == loop.in_tensor)
      inner->count *= loop.count;
    else
      found.loops.push_back(loop);
  }
  if (found.loops.empty()) found.loops.emplace_back();
  std::ranges::reverse(found.loops);
  return found;
}

}  // namespace cairn
