// Elements of a tensor's box in memory on their way to an array, or back: their runs in the array, and the
// transpose of a matrix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/base/box_map.h"

namespace cairn {

// Maps boxes, one after another, in its own memory.
class BoxTransposer {
 public:
  // Calls `visit(at, run)` for the stretches that `common` is in `target`, a box of the array of `map`, in
  // its row-major order: elements from number `at` on. `bytes` are those of the tensor's box `have`, which
  // contains `common`.
  template <typename Visit>
  void MapRuns(const BoxMap& map, const Box& common, const Box& have, std::span<const std::byte> bytes,
               const Box& target, const Visit& visit) {
    const uint64_t size = bytes.size() / have.Volume();
    const Box place = map.ToArray(common), from = map.transpose ? place : map.ToArray(have);
    if (map.transpose) bytes = Transposed(common, have, bytes, size);
    ForEachRun(place, from, target, [&](uint64_t begin, uint64_t at, uint64_t count) {
      visit(at, bytes.subspan(begin * size, count * size));
    });
  }

 private:
  // The transpose of `common`, a part of the box `have` whose elements of `size` bytes are `bytes`. Valid
  // until the next call.
  std::span<const std::byte> Transposed(const Box& common, const Box& have, std::span<const std::byte> bytes,
                                        uint64_t size);

  std::vector<std::byte> gathered_, transposed_;
};

}  // namespace cairn
