// The parts of a tensor that one rank of several has in a file of torch.save: a DTensor or a ShardedTensor.
//
// Source: torch 2.11, distributed/tensor/_dtensor_spec.py, placement_types.py (Shard cuts as torch.chunk
// does: the first ranks have as many rows as the rounded up share, the last ones fewer or none),
// device_mesh.py, and distributed/_shard/sharded_tensor/api.py.
#pragma once

#include <optional>
#include <vector>

#include "ckpt/base/box.h"
#include "ckpt/base/status.h"
#include "convert/torch/pickle_value.h"

namespace cairn {

struct RankPart {
  Box box;                         // of the tensor
  const PyValue* value = nullptr;  // a kTensor of the box's shape
};

struct RankParts {
  Dims shape;  // of the whole tensor
  std::vector<RankPart> parts;
  uint64_t ranks = 1;  // that have parts of it, or copies of them
};

// Nothing if the value is neither. Errors: NotSupported naming a placement that is neither Shard nor
// Replicate; Corrupt if fields are missing, or if a part's shape is not that of its box.
Result<std::optional<RankParts>> RankPartsOf(const PyValue& value);

}  // namespace cairn
