// A source with the weights that its block-scaled tensors stand for.
#pragma once

#include <memory>
#include <vector>

#include "convert/foreign/foreign_source.h"
#include "convert/formats/hugging_face/block_scaled.h"

namespace cairn {

// Weights of `type` (fp32, bf16 or fp16) are in place of their values; scales are left out, and so is what
// config.json says about them. `scaled` is of the source's catalog. Numbers are computed in fp32 and then
// rounded.
std::unique_ptr<ForeignSource> Dequantized(std::unique_ptr<ForeignSource> source,
                                           const std::vector<BlockScaled>& scaled, Dtype type);

}  // namespace cairn
