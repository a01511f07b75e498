// Memory as the kernel counts it, from /proc; 0 if unknown.
#pragma once

#include <cstdint>

namespace cairn {

// The memory of this process: what it holds now, and the most that it has held. (getrusage() inherits the
// maximum of the process that started this one.)
uint64_t ResidentMemoryBytes();
uint64_t PeakMemoryBytes();

// Memory that processes can still allocate without swapping.
uint64_t AvailableMemoryBytes();

}  // namespace cairn
