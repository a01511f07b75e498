// The shards of one pipeline stage, written from blocks of its tensors.
//
// Each shard has one write buffer per piece that has begun and not ended. Several processes may write
// different tensors into the same shards: all use the same layout.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ckpt/step/shard_writer.h"
#include "convert/stream/block_stream.h"
#include "convert/stream/step_plan.h"

namespace cairn {

// Pieces of a tensor that are open at once in a stage, at most. A tensor that is cut across its rows has one
// for each rank of that axis, any other has one; the next may have begun.
int OpenPieces(const Topology& target);

// Buffers for writing in a window of memory: a quarter of it.
WriteRingOptions RingFor(uint64_t max_memory, int jobs, const Topology& target);

class StageWriter {
 public:
  struct Target {  // of a piece of a tensor
    size_t shard;  // of this stage
    size_t piece;  // of the shard
    Box box;
    FlatRange range;
  };

  // Lays out the stage's shards in `directory` and creates them, or opens existing ones. `ring` and
  // `plan` must outlive it.
  static Result<std::unique_ptr<StageWriter>> Create(FileSystem& fs, WriteRing& ring,
                                                     const std::string& directory,
                                                     const StepIdentity& identity, const StepPlan& plan,
                                                     int stage, Direct direct);

  // The tensors that have pieces here, in catalog order.
  const std::vector<uint32_t>& tensors() const { return tensors_; }
  const std::vector<Target>& targets(uint32_t tensor) const { return targets_[tensor]; }
  ShardWriter& shard(size_t index) { return *shards_[index]; }
  const ShardWriter& shard(size_t index) const { return *shards_[index]; }

  // The next block of a tensor.
  Status Append(const Block& block);
  // Call once every tensor is whole. Writes the rest of each shard, and syncs it, several at once: the disk
  // syncs them together. Receipts are in order of rank.
  Result<std::vector<ShardReceipt>> Finish(int threads);

 private:
  explicit StageWriter(const StepPlan& plan);
  Status Scatter(const Target& target, const Block& block);

  const StepPlan& plan_;
  std::vector<std::unique_ptr<ShardWriter>> shards_;
  std::vector<std::vector<Target>> targets_;  // of each tensor, in row-major order
  std::vector<uint32_t> tensors_;
};

}  // namespace cairn
