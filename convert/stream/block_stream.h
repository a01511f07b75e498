// Walks tensors of a step block by block, verified, while the next block is being read.
//
// A block is a box that is contiguous in its tensor's row-major order: consecutive indices of one dimension,
// one index of each dimension before it, everything of those after it. The intersection of a block and any
// box of the tensor is therefore contiguous in that box, too: blocks can be appended to the pieces of any
// topology as they come. The block size bounds the memory, whatever the size of a tensor.
#pragma once

#include <functional>
#include <span>

#include "ckpt/model/source.h"

namespace cairn {

inline constexpr uint64_t kDefaultMaxMemory = 256 << 20;
inline constexpr uint64_t kBlocksInFlight = 4;  // neither thread waits for a short pause of the other
inline constexpr uint64_t kMaxBlockBytes =
    16 << 20;  // larger ones gained nothing and leave the last-level cache

// The block size for a window of memory: blocks between the reading thread and the visitor take an eighth of
// it.
uint64_t BlockBytesFor(uint64_t max_memory);

// The cache of chunks of a reader of blocks (CheckpointSource::SetCacheBytes) in a window of memory: half of
// it, at most 128 MiB, enough for 23 pieces side by side.
uint64_t ReaderCacheFor(uint64_t max_memory);

// The blocks of one tensor, in row-major order. Pure.
class BlockCursor {
 public:
  // Blocks of at most `max_elements`, at least one element each.
  BlockCursor(const Dims& shape, uint64_t max_elements);

  bool done() const { return done_; }
  // The current block. Requires !done().
  Box box() const;
  void Advance();

 private:
  Dims shape_;
  int depth_ = 0;      // blocks are ranges of this dimension
  uint64_t rows_ = 1;  // indices of it in a block
  Dims at_;            // where the current block starts
  bool done_ = false;
};

struct Block {
  uint32_t tensor = 0;  // into the source's catalog
  Box box;
  uint64_t begin = 0;  // row-major index of its first element in the tensor
  std::span<const std::byte> bytes;
};

// The blocks of some tensors, set after set. The tensors of a set have one shape and take turns: the first
// block of each, then the second of each. `catalog` must outlive the sequence. Copies are independent.
BoxSequence BlocksOf(const TensorTable& catalog, std::vector<std::vector<uint32_t>> sets,
                     uint64_t block_bytes);
// A set of each tensor by itself.
std::vector<std::vector<uint32_t>> EachAlone(std::span<const uint32_t> tensors);

// Calls `visit` for every block of `tensors`, in that order, on the calling thread. Stops at its first error.
// In the end the checksums of what was read are verified. Errors: those of CheckpointSource::ReadBox, of
// CheckRead() and of `visit`.
Status StreamBlocks(CheckpointSource& reader, std::span<const uint32_t> tensors, uint64_t block_bytes,
                    const std::function<Status(const Block&)>& visit);

// The same for one of several parts of what is read: the caller calls CheckRead() after the last one. `see`,
// if any, is called for every block before `visit`, on the reading thread, to relieve the visitor.
Status StreamPart(CheckpointSource& reader, BoxSequence blocks,
                  const std::function<Status(const Block&)>& visit,
                  const std::function<void(const Block&)>& see = {});

// The indices of all tensors of the catalog.
std::vector<uint32_t> AllTensors(const TensorTable& catalog);

}  // namespace cairn
