#include "runtime/train/memory_use.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include "ckpt/base/proc_memory.h"

namespace cairn {

MemoryUse MemoryUseOf(at::Device device) {
  MemoryUse use;
  use.host_available = AvailableMemoryBytes();
  if (device.is_cpu()) {
    use.allocated = use.reserved = ResidentMemoryBytes();
    use.max_allocated = use.max_reserved = PeakMemoryBytes();
    return use;
  }
  const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  use.allocated = stats.allocated_bytes[all].current;
  use.max_allocated = stats.allocated_bytes[all].peak;
  use.reserved = stats.reserved_bytes[all].current;
  use.max_reserved = stats.reserved_bytes[all].peak;
  return use;
}

std::string MemoryLine(int rank, int64_t iteration, const MemoryUse& use) {
  const auto mb = [](uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return fmt::format(
      "[Rank {}] (after {} iterations) memory (MB) | allocated: {:.1f} | max allocated: {:.1f} | reserved: "
      "{:.1f} | "
      "max reserved: {:.1f} | host available: {:.1f}",
      rank, iteration, mb(use.allocated), mb(use.max_allocated), mb(use.reserved), mb(use.max_reserved),
      mb(use.host_available));
}

}  // namespace cairn
