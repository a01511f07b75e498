// The limits of one input: a second of processor time and 512 MiB of memory.
//
// Time is the process's own (ITIMER_PROF), so that a busy machine makes no findings. Memory is what operator
// new has given out and not taken back since the input began: limits.cc replaces it and counts. An input that
// takes more, and one that crashes the program, lies in a file afterwards.
#pragma once

#include <cstdint>
#include <string>

namespace cairn {

inline constexpr int kInputSeconds = 1;
inline constexpr uint64_t kInputBytes = 512 << 20;

// Whoever breaks a limit from now on ends the program with a line that names `keep`, where the input then is;
// empty: nowhere. To be called once.
void WatchInputs(const std::string& keep);

// From construction to destruction: `input` is at work.
class InputAtWork {
 public:
  explicit InputAtWork(const std::string& input);
  ~InputAtWork();
  InputAtWork(const InputAtWork&) = delete;
  InputAtWork& operator=(const InputAtWork&) = delete;
};

// The most that any input so far took.
struct InputPeaks {
  double seconds = 0;
  uint64_t bytes = 0;
};
InputPeaks PeaksOfInputs();

}  // namespace cairn
