// Index arithmetic in row-major order. Decompose() cuts a range into head, whole rows and tail; only head and
// tail go one dimension deeper, which is why so few boxes result. ForEachRun() joins the last dimensions that
// are whole in both boxes, and the one before them, into one run; the rest is counted up like an odometer.
// Contains() subtracts rather than adds, as sums of untrusted numbers may wrap around.

#include "ckpt/base/box.h"

#include <algorithm>

namespace cairn {

bool Dims::operator==(const Dims& other) const {
  return std::equal(begin(), end(), other.begin(), other.end());
}

uint64_t Dims::Volume() const {
  uint64_t volume = 1;
  for (uint64_t value : *this) volume *= value;
  return volume;
}

std::string ToString(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims.begin(), dims.end(), ", "));
}

std::optional<uint64_t> CheckedBytes(const Dims& dims, uint64_t element_size) {
  uint64_t bytes = element_size;
  if (std::find(dims.begin(), dims.end(), 0u) != dims.end()) return 0;
  for (uint64_t value : dims)
    if (__builtin_mul_overflow(bytes, value, &bytes) || bytes > INT64_MAX) return std::nullopt;
  return bytes;
}

std::string ToString(const Box& box) {
  std::vector<std::string> parts;
  for (int i = 0; i < box.rank(); ++i)
    parts.push_back(fmt::format("{}:{}", box.offset[i], box.offset[i] + box.extent[i]));
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

bool Contains(const Box& outer, const Box& inner) {
  if (outer.rank() != inner.rank()) return false;
  for (int i = 0; i < outer.rank(); ++i) {
    if (inner.offset[i] < outer.offset[i] || inner.extent[i] > outer.extent[i]) return false;
    if (inner.offset[i] - outer.offset[i] > outer.extent[i] - inner.extent[i]) return false;
  }
  return true;
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  assert(a.rank() == b.rank());
  Box common = a;
  for (int i = 0; i < a.rank(); ++i) {
    const uint64_t begin = std::max(a.offset[i], b.offset[i]);
    const uint64_t end = std::min(a.offset[i] + a.extent[i], b.offset[i] + b.extent[i]);
    if (begin >= end) return std::nullopt;
    common.offset[i] = begin;
    common.extent[i] = end - begin;
  }
  return common;
}

namespace {

// The box of one row-major unit at depth `dim`: `count` consecutive indices of it, all of later dimensions.
Box Slab(const Box& box, const Dims& prefix, int dim, uint64_t first, uint64_t count) {
  Box slab = box;
  for (int i = 0; i < dim; ++i) {
    slab.offset[i] = box.offset[i] + prefix[i];
    slab.extent[i] = 1;
  }
  slab.offset[dim] = box.offset[dim] + first;
  slab.extent[dim] = count;
  return slab;
}

// Cuts [begin, end) of the sub-box whose first `dim` coordinates are `prefix`: head, whole rows, tail.
void DecomposeAt(const Box& box, Dims& prefix, int dim, uint64_t begin, uint64_t end, uint64_t out_base,
                 std::vector<Segment>& out) {
  if (begin >= end) return;
  uint64_t row = 1;
  for (int i = dim + 1; i < box.rank(); ++i) row *= box.extent[i];
  auto partial = [&](uint64_t index, uint64_t from, uint64_t to) {
    prefix[dim] = index;
    DecomposeAt(box, prefix, dim + 1, from, to, out_base + (index * row + from - begin), out);
  };
  const uint64_t first_whole = (begin + row - 1) / row;
  const uint64_t end_whole = end / row;
  if (first_whole > end_whole) return partial(begin / row, begin % row, end - begin / row * row);
  if (begin % row != 0) partial(begin / row, begin % row, row);
  if (first_whole < end_whole)
    out.push_back(
        {Slab(box, prefix, dim, first_whole, end_whole - first_whole), out_base + first_whole * row - begin});
  if (end % row != 0) partial(end_whole, 0, end % row);
}

}  // namespace

std::vector<Segment> Decompose(const Box& box, FlatRange range) {
  std::vector<Segment> segments;
  if (range.begin >= range.end) return segments;
  if (box.rank() == 0) return {{box, 0}};
  Dims prefix = Dims::Filled(box.rank(), 0);
  DecomposeAt(box, prefix, 0, range.begin, range.end, 0, segments);
  return segments;
}

uint64_t FlatIndex(const Box& box, const Dims& point) {
  uint64_t index = 0;
  for (int i = 0; i < box.rank(); ++i) index = index * box.extent[i] + (point[i] - box.offset[i]);
  return index;
}

Box ElementAt(const Box& box, uint64_t index) {
  Box element{box.offset, Dims::Filled(box.rank(), 1)};
  for (int d = box.rank() - 1; d >= 0; --d) {
    element.offset[d] += index % box.extent[d];
    index /= box.extent[d];
  }
  return element;
}

void ForEachRun(const Box& common, const Box& source, const Box& target,
                const std::function<void(uint64_t, uint64_t, uint64_t)>& visit) {
  // Dimensions from `inner` on are covered whole in both, so that one run spans them and a range of the one
  // before.
  int inner = common.rank();
  uint64_t run = 1;
  while (inner > 0) {
    --inner;
    run *= common.extent[inner];
    if (common.extent[inner] != source.extent[inner] || common.extent[inner] != target.extent[inner]) break;
  }
  if (common.Volume() == 0) return;
  Dims point = common.offset;
  while (true) {
    visit(FlatIndex(source, point), FlatIndex(target, point), run);
    int dim = inner - 1;
    for (; dim >= 0; --dim) {
      if (++point[dim] < common.offset[dim] + common.extent[dim]) break;
      point[dim] = common.offset[dim];
    }
    if (dim < 0) return;
  }
}

}  // namespace cairn
