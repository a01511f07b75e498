// The transpose of a matrix in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/base/box.h"

namespace cairn {

// Transposes boxes, one after another, in its own memory.
class BoxTransposer {
 public:
  // The transpose of `common`, a part of the box `have` whose elements of `size` bytes are `bytes`. Valid
  // until the next call.
  std::span<const std::byte> Transposed(const Box& common, const Box& have, std::span<const std::byte> bytes,
                                        uint64_t size);

 private:
  std::vector<std::byte> gathered_, transposed_;
};

}  // namespace cairn
