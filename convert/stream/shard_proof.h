// Reads pieces back from the disk, past the page cache, before they count: each chunk must match the digest
// that its shard is going to carry, and its elements are summed at the place in the tensor that the shard
// says they have.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "convert/stream/fingerprint.h"
#include "convert/stream/stage_writer.h"

namespace cairn {

// Keeps its buffers from one proof to the next. Belongs to one thread at a time.
class ShardProof {
 public:
  // Large reads in flight that take at most `max_memory`, one at least. `tensors`: of the target's plan; both
  // must outlive it.
  ShardProof(FileSystem& fs, const std::string& directory, const std::vector<TensorEntry>& tensors,
             uint64_t max_memory);

  // Reads all pieces of `tensors` in a stage's shards, which must be written, in order of place. Adds to
  // `sums`; `advance` is told the bytes done. Errors: Corrupt naming file, offset and tensor; those of the
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
  struct Slot {  // a read
    std::shared_ptr<File> file;
    std::unique_ptr<WriteRing::Buffer> memory;
    std::span<const ChunkRef> chunks;
    uint64_t begin = 0;  // in the file, of `memory`
  };

  std::vector<ChunkRef> ChunksOf(const StageWriter& stage, std::span<const uint32_t> tensors) const;
  Status StartRead(const StageWriter& stage, size_t slot);
  Result<std::shared_ptr<File>> FileOf(const StageWriter& stage, size_t shard);
  Status Check(const StageWriter& stage, const ChunkRef& ref, const Slot& slot, StepFingerprint& sums) const;
  Status Drain(Status status);

  FileSystem& fs_;
  const std::string& directory_;
  const std::vector<TensorEntry>& tensors_;
  std::vector<ChunkRef> chunks_;  // of this proof
  size_t next_ = 0;               // not yet being read
  std::shared_ptr<File> file_;
  size_t file_shard_ = 0;
  std::vector<Slot> slots_;
  std::unique_ptr<IoQueue> queue_;  // last: it waits for reads into the slots
};

}  // namespace cairn
