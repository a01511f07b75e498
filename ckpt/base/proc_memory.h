// Memory as the kernel counts it, from /proc; 0 if it does not say.
#pragma once

#include <cstdint>

namespace cairn {

// The memory of this process: what it holds now, and the most that it has held. (getrusage() would hand its
// maximum down from the process that started this one.)
uint64_t ResidentMemoryBytes();
uint64_t PeakMemoryBytes();

// Memory that all processes together can still have without swapping.
uint64_t AvailableMemoryBytes();

}  // namespace cairn
