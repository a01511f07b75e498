#include "ckpt/base/proc_memory.h"

#include <fstream>
#include <limits>
#include <string>

namespace cairn {
namespace {

// The number after `name` in a file that counts in kB.
uint64_t BytesIn(const char* file, std::string_view name) {
  std::ifstream lines(file);
  for (std::string word; lines >> word; lines.ignore(std::numeric_limits<std::streamsize>::max(), '\n'))
    if (uint64_t kib = 0; word == name && lines >> kib) return kib << 10;
  return 0;
}

}  // namespace

uint64_t ResidentMemoryBytes() { return BytesIn("/proc/self/status", "VmRSS:"); }
uint64_t PeakMemoryBytes() { return BytesIn("/proc/self/status", "VmHWM:"); }
uint64_t AvailableMemoryBytes() { return BytesIn("/proc/meminfo", "MemAvailable:"); }

}  // namespace cairn
