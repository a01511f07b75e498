// Facts in single log lines: memory, checkpoints, dates, which rank printed it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

struct MemoryFacts {
  double allocated_gib = 0;  // the most that tensors took
  double reserved_gib = 0;   // the most that the allocator held
};
// "max allocated: 2000.2 | reserved: 3000.0 | max reserved: 3200.0" (MB), "Max_MA 5.38 GB ... Max_CA 6 GB",
// "MaxMemAllocated=15.06GB". 0 if the line does not say.
MemoryFacts MemoryIn(std::string_view text);

struct CheckpointFacts {
  int64_t saved_iteration = -1;  // "successfully saved checkpoint at iteration 100"
  double seconds = -1;           // "save-checkpoint: 17960.68" (ms), "(stall 0.003 s, ..."
};
CheckpointFacts CheckpointIn(std::string_view text);

// "2024-09-03 15:52:43" or with T between, anywhere in `text`, as seconds since 1970 in no time zone.
std::optional<int64_t> DateIn(std::string_view text);

// Who printed the line by its launcher's prefix ("3: ", "[rank3]: ", "[default0]:"); empty if there is
// none.
std::string_view SpeakerOf(std::string_view text);

}  // namespace cairn
