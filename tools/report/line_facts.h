// Facts in single log lines: memory, checkpoints, dates, the rank that printed it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

struct MemoryFacts {
  double allocated_gib = 0;  // peak of tensors
  double reserved_gib = 0;   // peak of the allocator
};
// "max allocated: 2000.2 | reserved: 3000.0 | max reserved: 3200.0" (MB), "Max_MA 5.38 GB ... Max_CA 6 GB",
// "MaxMemAllocated=15.06GB", torchtitan's "memory:  9.46GiB(64.99%)". 0 if not in the line.
MemoryFacts MemoryIn(std::string_view text);

struct CheckpointFacts {
  int64_t saved_iteration = -1;  // "successfully saved checkpoint at iteration 100"
  double seconds = -1;           // "save-checkpoint: 17960.68" (ms), "(stall 0.003 s, ..."
  double whole_seconds = -1;     // "durable after 0.5 s", and to the ranks' nodes "safe after 0.02 s"
  bool local = false;            // the latter
  bool in_memory = false;        // of the nodes: "to /dev/shm/gpt"
  bool of_last_step = false;     // "Finished saving the checkpoint in 5.53 seconds.", without an iteration
};
CheckpointFacts CheckpointIn(std::string_view text);

// "2024-09-03 15:52:43", or with T between, or with a fraction (",338"), anywhere in `text`, as seconds since
// 1970, without a time zone.
std::optional<double> DateIn(std::string_view text);

// The launcher's prefix of the line, which names the rank ("3: ", "[rank3]: ", "[default0]:"), or empty.
std::string_view SpeakerOf(std::string_view text);

}  // namespace cairn
