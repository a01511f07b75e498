// A map of boxes drawn at random: its tensor and array of any rank, axes in any order, leading and other axes
// of extent 1 that only one of them has.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "ckpt/base/box_map.h"

namespace cairn {

struct RandomBoxMap {
  Dims tensor, array;        // shapes
  BoxMap map;                // of boxes of these
  std::vector<int> axis_of;  // for each axis of the array, that of the tensor; -1: only the array has it

  // The array's element that is the tensor's element `point` of the map's box.
  Dims Find(const Dims& point) const {
    Dims found = map.in_array.offset;
    for (int i = 0; i < found.rank(); ++i)
      if (axis_of[i] >= 0) found[i] += point[axis_of[i]] - map.box.offset[axis_of[i]];
    return found;
  }
};

// A box in `shape` that is not empty.
inline Box RandomBox(std::mt19937_64& rng, const Dims& shape) {
  Box box = Box::Whole(shape);
  for (int i = 0; i < shape.rank(); ++i) {
    box.offset[i] = rng() % shape[i];
    box.extent[i] = 1 + rng() % (shape[i] - box.offset[i]);
  }
  return box;
}

// Some axes of an array with unused indices around `box`, and some without. Each axis that only the array has
// makes the ones before it a step longer.
inline RandomBoxMap DrawArray(std::mt19937_64& rng, const Dims& tensor, const Box& box) {
  RandomBoxMap drawn{tensor, {}, {box, {}}, {}};
  for (int i = 0; i < box.rank(); ++i)
    if (box.extent[i] != 1 || rng() % 2 == 0) drawn.axis_of.push_back(i);
  if (rng() % 2 == 0) std::ranges::shuffle(drawn.axis_of, rng);
  for (uint64_t more = rng() % 3; more > 0; --more)
    drawn.axis_of.insert(drawn.axis_of.begin() + rng() % (drawn.axis_of.size() + 1), -1);
  std::vector<int> free(kMaxRank);  // axes of the tensor that the array lacks, counted from the last
  std::iota(free.begin(), free.end(), 0);
  const int rank = static_cast<int>(drawn.axis_of.size());
  for (const int axis : drawn.axis_of)
    if (axis >= 0) std::erase(free, box.rank() - 1 - axis);
  for (int i = 0; i < kMaxRank; ++i) {
    const int axis = i < rank ? drawn.axis_of[rank - 1 - i] : -1;
    drawn.map.axes[i] = static_cast<uint8_t>(axis >= 0 ? box.rank() - 1 - axis : free.front());
    if (axis < 0) free.erase(free.begin());
  }
  for (const int axis : drawn.axis_of) {
    const uint64_t extent = axis < 0 ? 1 : box.extent[axis], offset = rng() % 2 * (rng() % 3);
    drawn.map.in_array.offset.push_back(offset);
    drawn.map.in_array.extent.push_back(extent);
    drawn.array.push_back(offset + extent + rng() % 2 * (rng() % 3));
  }
  return drawn;
}

inline RandomBoxMap DrawBoxMap(std::mt19937_64& rng, uint64_t largest) {
  Dims shape;
  for (uint64_t rank = rng() % 6; rank > 0; --rank) shape.push_back(1 + rng() % largest);
  return DrawArray(rng, shape, RandomBox(rng, shape));
}

}  // namespace cairn
