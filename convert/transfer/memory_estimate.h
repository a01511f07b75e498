// Estimates the peak memory of a verb that streams a checkpoint, for --dry-run. Counts the buffers that the
// sizes of the tensors touch. Measured peaks of 32 MB to 200 MB were within a quarter of it.
#pragma once

#include <span>

#include "convert/stream/tensor_stream.h"

namespace cairn {

inline constexpr uint64_t kProgramMemory = 32 << 20;  // without any buffer

// HDF5, the threads that write and prove, and the shards that are open.
uint64_t MemoryOfNativeWriter(const Topology& target, uint64_t max_memory);

// StreamBlocks() of these tensors, with ReaderCacheFor(max_memory): its blocks, and the reader's cache.
uint64_t MemoryOfReading(const CheckpointSource& source, std::span<const uint32_t> tensors,
                         uint64_t block_bytes, uint64_t max_memory);

// A ring of `buffers` to write pieces of these tensors, each cut into `cuts` pieces.
uint64_t MemoryOfWriting(std::span<const WrittenTensor> tensors, uint64_t buffer_bytes, uint64_t buffers,
                         uint64_t cuts);

}  // namespace cairn
