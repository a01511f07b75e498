#include "ckpt/base/box_cover.h"

#include <algorithm>
#include <numeric>
#include <set>
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

std::optional<Dims> FirstGap(std::span<const Box> boxes, const Dims& shape) {
  constexpr size_t kMostBoxes = 4096;
  if (boxes.size() > kMostBoxes) return std::nullopt;
  const auto volume = [](const Dims& dims, int from) {
    uint64_t product = 1;
    for (int dim = from; dim < dims.rank(); ++dim) product *= dims[dim];
    return product;
  };
  // For each dimension, the first index at which the boxes do not fill the rest.
  Dims gap = Dims::Filled(shape.rank(), 0);
  std::vector<Box> here(boxes.begin(), boxes.end());
  for (int dim = 0; dim < shape.rank(); ++dim) {
    std::set<uint64_t> begins = {0};
    for (const Box& box : here) begins.insert({box.offset[dim], box.offset[dim] + box.extent[dim]});
    const auto at = [&](uint64_t index) {
      std::vector<Box> met;
      std::ranges::copy_if(here, std::back_inserter(met), [&](const Box& box) {
        return box.offset[dim] <= index && index < box.offset[dim] + box.extent[dim];
      });
      return met;
    };
    const auto found = std::ranges::find_if(begins, [&](uint64_t index) {
      uint64_t filled = 0;
      for (const Box& box : at(index)) filled += volume(box.extent, dim + 1);
      return index < shape[dim] && filled < volume(shape, dim + 1);
    });
    if (found == begins.end()) return std::nullopt;
    gap[dim] = *found;
    here = at(*found);
  }
  return gap;
}

}  // namespace cairn
