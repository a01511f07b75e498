// The plan of one rank's saves, valid as long as its state dict keeps its shape: the tensors that it holds,
// the shard that it writes, and the memory for copies of them, laid out as the shard's file.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
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
  std::vector<StateTensor> tensors;  // held by this rank, even if another rank writes them
  std::vector<std::string> names;    // FQNs of these and of the small ones
  std::string table;                 // the same, encoded
  std::optional<ShardPlan> shard;    // nullopt if this rank writes nothing
  SharedMemory memory;
  std::vector<std::vector<uint64_t>> offsets;  // in the memory, of each tensor's pieces
  // For the steps that this rank commits:
  H5Views views;
  ContentShard small_tensors;
  ContentShard values;

  // From the trainer's request: {"rank", "world", "tensors": [{"fqn", "path"?, "dtype", "shape", "pieces":
  // [{"offset", "extent"}]}], "names": [FQN]}. Errors: Corrupt, NoSpace.
  using MakeMemory = std::function<Result<SharedMemory>(uint64_t bytes)>;
  static Result<std::unique_ptr<SavePlan>> Make(const nlohmann::json& request, const MakeMemory& make);
};

}  // namespace cairn
