// The state of Megatron's distributed optimizer as "fully_sharded_model_space" (its default with
// --ckpt-fully-parallel-save up to Megatron-Core 0.14) lays it out: cut along the flattened slice of a rank.
//
// A weight of shape [X, Y] of which a model parallel rank holds boxes of [x, y] has a state of shape
// [X/x, Y/y, x*y]: a grid of boxes, each flattened; data parallel ranks hold ranges of the last dimension.
// Source: Megatron-Core 0.14.0, dist_checkpointing/strategies/torch.py (mcore_to_pyt_state_dict).
#pragma once

#include <vector>

#include "convert/formats/dcp/dcp_index.h"

namespace cairn {

struct MegatronCell {
  Box box;            // of the weight
  StoredArray array;  // the same elements, of the box's shape
};

// The cells of a weight of shape `weight` in `state`. Adds files to `builder`.
// Errors: NotSupported if it is not this grid; Corrupt naming a cell and an element that is missing or occurs
// twice; those of DcpItems::Array.
Result<std::vector<MegatronCell>> CellsOf(const DcpTensor& state, const Dims& weight, DcpItems& items,
                                          StoredBuilder& builder);

// Chunks of `tensor` that follow each other in its last dimension, as one array of `shape`.
// Errors: Corrupt if they leave a hole or overlap; those of DcpItems::Array.
Result<StoredArray> JoinChunks(const DcpTensor& tensor, std::vector<const DcpChunk*> chunks,
                               const Dims& shape, DcpItems& items, StoredBuilder& builder);

// The elements of `part` become those of `whole` from `begin` on.
void AppendExtents(const StoredArray& part, uint64_t begin, StoredArray& whole);

}  // namespace cairn
