// The seed binds the digests of a piece to its identity: an intact chunk of another run, step, tensor or box
// does not pass for it.
#pragma once

#include <cstdint>
#include <string_view>

#include "ckpt/model/tensor.h"

namespace cairn {

// The seed of chunk `chunk` of a piece is PieceSeed + chunk.
uint64_t PieceSeed(std::string_view run, int64_t step, const TensorEntry& tensor, const Box& box,
                   FlatRange range);

}  // namespace cairn
