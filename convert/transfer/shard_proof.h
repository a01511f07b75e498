// Reads pieces back from the disk, past the page cache, before they count: each chunk must match the digest
// that its shard will carry, and its elements are summed at their place in the tensor according to the shard.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ckpt/io/extent_reader.h"
#include "convert/stream/fingerprint.h"
#include "convert/transfer/stage_writer.h"

namespace cairn {

// Keeps its buffers from one proof to the next. Belongs to one thread at a time.
class ShardProof {
 public:
  // Large reads in flight that take at most `max_memory`, one at least. `tensors`: of the target's plan; both
  // must outlive it.
  ShardProof(FileSystem& fs, const std::string& directory, const std::vector<TensorEntry>& tensors,
             uint64_t max_memory);

  // Reads all pieces of `tensors` in a stage's shards, which must be written, in order of place. Adds to
  // `sums`; `advance` gets the bytes done. Errors: Corrupt naming file, offset and tensor; those of the
  // disk.
  Status Prove(const StageWriter& stage, std::span<const uint32_t> tensors, StepFingerprint& sums,
               const std::function<void(uint64_t)>& advance);

 private:
  struct ChunkRef {
    size_t shard;
    uint64_t offset;  // in the shard's file
    uint32_t tensor;
    size_t piece;  // of the shard
    uint64_t chunk;
    uint64_t bytes;
  };
  using Neighbours = std::span<const ChunkRef>;  // read together

  std::vector<ChunkRef> ChunksOf(const StageWriter& stage, std::span<const uint32_t> tensors) const;
  static std::vector<Neighbours> JoinedOf(std::span<const ChunkRef> chunks);
  Status Check(const StageWriter& stage, const ChunkRef& ref, std::span<const std::byte> bytes,
               StepFingerprint& sums) const;

  const std::vector<TensorEntry>& tensors_;
  OpenFiles files_;
  ExtentReader reader_;
};

}  // namespace cairn
