// A box of a tensor: an offset and an extent per dimension; and a flat range of a box's row-major order.
//
// Everything counts elements, never bytes. A scalar has rank 0 and one element. Pure arithmetic, no I/O.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

inline constexpr int kMaxRank = 8;  // no known checkpoint needs more than 5; untrusted input is held to it

// Up to kMaxRank numbers without an allocation: a shape, an offset or an extent.
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<uint64_t> values) {
    for (uint64_t value : values) push_back(value);
  }
  static Dims Filled(int rank, uint64_t value) {
    Dims dims;
    for (int i = 0; i < rank; ++i) dims.push_back(value);
    return dims;
  }

  int rank() const { return rank_; }
  uint64_t& operator[](int i) { return values_[i]; }
  uint64_t operator[](int i) const { return values_[i]; }
  void push_back(uint64_t value) {
    assert(rank_ < kMaxRank);
    values_[rank_++] = value;
  }
  const uint64_t* begin() const { return values_.data(); }
  const uint64_t* end() const { return values_.data() + rank_; }
  bool operator==(const Dims& other) const;

  // Product of all, 1 for rank 0. For trusted shapes; see CheckedVolume.
  uint64_t Volume() const;

 private:
  std::array<uint64_t, kMaxRank> values_{};
  uint8_t rank_ = 0;
};

// "[2, 3]"
std::string ToString(const Dims& dims);

// Product of `dims` times `element_size`; nullopt if it exceeds 2^63 - 1.
std::optional<uint64_t> CheckedBytes(const Dims& dims, uint64_t element_size);

struct Box {
  Dims offset;
  Dims extent;

  static Box Whole(const Dims& shape) { return {Dims::Filled(shape.rank(), 0), shape}; }
  int rank() const { return extent.rank(); }
  uint64_t Volume() const { return extent.Volume(); }
  bool operator==(const Box&) const = default;
};

// "[0:2, 4:8]"
std::string ToString(const Box& box);

// True if `inner` lies inside `outer`; same rank. An empty box is inside if its offset is.
bool Contains(const Box& outer, const Box& inner);

// The common part; nullopt if it is empty. Requires equal ranks.
std::optional<Box> Intersect(const Box& a, const Box& b);

// Half-open range of elements in a box's row-major order.
struct FlatRange {
  uint64_t begin = 0;
  uint64_t end = 0;  // exclusive
  uint64_t size() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

// One contiguous sub-box of a flat range: its elements lie at [begin, begin + box.Volume()) of the range.
struct Segment {
  Box box;             // in the tensor's coordinates
  uint64_t begin = 0;  // elements from the start of the flat range
};

// Cuts `range` of `box` into at most 2 * rank - 1 boxes, in row-major order.
std::vector<Segment> Decompose(const Box& box, FlatRange range);

// Calls `visit(source_offset, target_offset, count)` for each maximal contiguous run of `common`, in
// row-major order. Offsets are elements in the row-major orders of `source` and `target`. Requires both to
// contain `common`.
void ForEachRun(const Box& common, const Box& source, const Box& target,
                const std::function<void(uint64_t, uint64_t, uint64_t)>& visit);

// Row-major index of `point` (tensor coordinates) in `box`.
uint64_t FlatIndex(const Box& box, const Dims& point);
// The box of the one element at `index` of the row-major order of `box`.
Box ElementAt(const Box& box, uint64_t index);

}  // namespace cairn
