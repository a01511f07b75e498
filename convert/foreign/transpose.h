// Elements of a tensor's box in memory on their way to an array, or back: their runs in the array, and the
// transpose of what lies in another order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/base/box_map.h"

namespace cairn {

// Maps boxes, one after another, in its own memory.
class BoxTransposer {
 public:
  // Copies the elements of `common` to their places in `array`, the bytes of `target`. Other parameters: as
  // below.
  static void Put(const BoxMap& map, const Box& common, const Box& have, std::span<const std::byte> bytes,
                  const Box& target, std::span<std::byte> array);

  // Calls `visit(at, run)` for the stretches that `common` is in `target`, a box of the array of `map`, in
  // its row-major order: elements from number `at` on. `bytes` are those of the tensor's box `have`, which
  // contains `common`.
  template <typename Visit>
  void MapRuns(const BoxMap& map, const Box& common, const Box& have, std::span<const std::byte> bytes,
               const Box& target, const Visit& visit) {
    const uint64_t size = bytes.size() / have.Volume();
    BoxLoops of = LoopsOf(map, common, have, target);
    if (of.loops.back().in_tensor != 1) {
      const Box place = map.ToArray(common);
      ordered_.resize(std::max(ordered_.size(), common.Volume() * size));
      Put(map, common, have, bytes, place, ordered_);
      bytes = std::span(ordered_).first(common.Volume() * size);
      of = LoopsOf({place, place}, place, place, target);
    }
    std::span<const Loop> loops = of.loops;
    uint64_t count = 1;  // of a run
    if (loops.back().in_array == 1) {
      count = loops.back().count;
      loops = loops.first(loops.size() - 1);
    }
    ForEach(loops, of.in_array, of.in_tensor,
            [&](uint64_t at, uint64_t from) { visit(at, bytes.subspan(from * size, count * size)); });
  }

 private:
  std::vector<std::byte> ordered_;
};

}  // namespace cairn
