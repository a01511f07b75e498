// The memory use of a rank, in the words of Megatron-LM's report_memory.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace cairn {

// Bytes. On a GPU those of libtorch's allocator; on the CPU the resident set of the process and its peak, as
// `reserved` too.
struct MemoryUse {
  uint64_t allocated = 0, max_allocated = 0;
  uint64_t reserved = 0, max_reserved = 0;
  uint64_t host_available = 0;  // MemAvailable of the node
};

MemoryUse MemoryUseOf(at::Device device);

// "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.5 | max allocated: …".
std::string MemoryLine(int rank, int64_t iteration, const MemoryUse& use);

}  // namespace cairn
