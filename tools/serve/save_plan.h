// What one rank's saves have in common while its state dict keeps its shape: the tensors that it holds, the
// shard that it writes, and the memory that it copies them to, laid out as that shard's file.
#pragma once

#include <optional>
#include <vector>

#include "ckpt/h5/h5_views.h"
#include "ckpt/step/shard_plan.h"
#include "tools/serve/content_shard.h"
#include "tools/serve/shared_memory.h"
#include "tools/serve/state_table.h"

namespace cairn {

struct SavePlan {
  int rank = 0;
  int world = 1;
  std::vector<StateTensor> tensors;  // held, also where another rank writes them
  std::string table;                 // the same, encoded
  std::optional<ShardPlan> shard;    // nothing where this rank writes nothing
  SharedMemory memory;
  std::vector<std::vector<uint64_t>> offsets;  // in the memory, of each tensor's pieces
  // Of the steps that this rank commits:
  H5Views views;
  ContentShard small_tensors;
  ContentShard values;

  // Of the trainer's request: {"rank", "world", "tensors": [{"fqn", "path"?, "dtype", "shape", "pieces":
  // [{"offset", "extent"}]}], "names": [FQN]}. Errors: Corrupt, NoSpace.
  static Result<std::unique_ptr<SavePlan>> Make(const nlohmann::json& request);
};

// A box as {"offset": [...], "extent": [...]}. Errors: Corrupt where it is none of this shape, or empty.
Result<Box> BoxIn(const Dims& shape, const nlohmann::json& said);

}  // namespace cairn
