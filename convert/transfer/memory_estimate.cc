#include "convert/transfer/memory_estimate.h"

#include <algorithm>
#include <array>

#include "ckpt/step/step_reader.h"
#include "convert/foreign/stored_source.h"

namespace cairn {
namespace {

constexpr uint64_t kHdf5Memory = 10 << 20;
constexpr uint64_t kShardMemory = 1 << 20;

// Blocks go through the slots in turn; each slot touches the memory of its largest block.
uint64_t MemoryOfSlots(const CheckpointSource& source, std::span<const uint32_t> tensors,
                       uint64_t block_bytes) {
  std::array<uint64_t, kBlocksInFlight> touched{};
  size_t block = 0;
  for (const uint32_t tensor : tensors) {
    const TensorEntry& entry = source.catalog().tensors[tensor];
    const uint64_t size = SizeOf(entry.dtype);
    for (BlockCursor cursor(entry.spec.shape, block_bytes / size); !cursor.done(); cursor.Advance()) {
      uint64_t& slot = touched[block++ % touched.size()];
      slot = std::max(slot, cursor.box().Volume() * size);
      // More blocks of one tensor are as large as these.
      if (block > 1024 && std::ranges::min(touched) * 10 >= block_bytes * 9) break;
    }
  }
  uint64_t bytes = 0;
  for (const uint64_t slot : touched) bytes += slot;
  return bytes;
}

uint64_t BytesRead(const CheckpointSource& source, std::span<const uint32_t> tensors) {
  uint64_t bytes = 0;
  for (const uint32_t tensor : tensors) bytes += source.catalog().tensors[tensor].bytes();
  return bytes;
}

}  // namespace

uint64_t MemoryOfNativeWriter(const Topology& target, uint64_t max_memory) {
  const auto shards = static_cast<uint64_t>(target.stage_size());
  return std::min(kHdf5Memory, max_memory / 16) + shards * kShardMemory;
}

uint64_t MemoryOfReading(const CheckpointSource& source, std::span<const uint32_t> tensors,
                         uint64_t block_bytes, uint64_t max_memory) {
  const uint64_t slots = MemoryOfSlots(source, tensors, block_bytes);
  const uint64_t cache = ReaderCacheFor(max_memory), bytes = BytesRead(source, tensors);
  if (!source.native_step()) return slots + std::min(StoredSource::AheadBytes(cache), bytes / 16);
  // Chunks ahead, and those of the pieces that a block is made of.
  const uint64_t ahead = std::min(StepReader::AheadBytes(cache), bytes / 4);
  const auto shards = static_cast<uint64_t>(source.manifest().topology.stage_size());
  return slots + ahead + std::min({shards * kChunkBytes, cache - std::min(cache, ahead), bytes / 8});
}

uint64_t MemoryOfWriting(std::span<const WrittenTensor> tensors, uint64_t buffer_bytes, uint64_t buffers,
                         uint64_t cuts) {
  double squares = 0, sum = 1;  // the mean size of the tensor that a byte belongs to
  for (const WrittenTensor& tensor : tensors) {
    const auto bytes = static_cast<double>(tensor.entry.bytes());
    squares += bytes * bytes;
    sum += bytes;
  }
  const auto piece = static_cast<uint64_t>(squares / sum) / std::max<uint64_t>(1, cuts);
  return buffers * std::min(buffer_bytes, piece);
}

}  // namespace cairn
