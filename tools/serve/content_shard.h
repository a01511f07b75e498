// A shard of values that come as bytes, not in shared memory: small tensors, JSON, pickles.
//
// HDF5 takes 0.1 ms to lay out each of them, so a shard is laid out again only if names or sizes change. It
// is written from memory in one write.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/io/page_buffer.h"
#include "ckpt/step/shard_plan.h"
#include "tools/serve/state_dict.h"

namespace cairn {

class ContentShard {
 public:
  // Creates and syncs `directory`/`name`; nullopt if all contents are empty. Errors: those of the disk,
  // and of ShardPlan::Make.
  Result<std::optional<ShardReceipt>> Write(FileSystem& fs, const std::string& directory,
                                            const std::string& name, const StepIdentity& identity,
                                            std::span<const StateDict::Content> contents);

 private:
  Status LayOut(const std::string& name, std::vector<TensorEntry> entries);

  std::vector<TensorEntry> entries_;  // of the layout; none of them empty
  std::optional<ShardPlan> layout_;
  std::optional<PageBuffer> image_;
};

}  // namespace cairn
