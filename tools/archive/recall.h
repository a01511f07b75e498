// Members that a hierarchical store has moved to tape: recognised, and asked back in one go, in the order of
// the tape.
#pragma once

#include <string>
#include <vector>

#include "ckpt/status.h"

namespace cairn {

struct RecallCommands {
  std::string stat;    // "hsm_pos {path}": prints where the file lies; sorted by that, numbers as numbers
  std::string recall;  // "dmget {paths}"; empty: reading alone brings a file back
};

// Far fewer blocks on the disk than bytes in the file: it lies on tape, or was never there.
bool IsStub(const std::string& path);

// The files that are stubs, in the order of the tape; as given where there is no stat command.
// Errors: IoError where the command fails.
Result<std::vector<std::string>> StubsInTapeOrder(const std::vector<std::string>& paths,
                                                  const RecallCommands& commands);

// Asks for all stubs among `paths`, in batches. Returns how many there were. Errors: IoError where a command
// fails, or a file is a stub still when it ends.
Result<size_t> Recall(const std::vector<std::string>& paths, const RecallCommands& commands);

// Whether `a` comes before `b`, with runs of digits compared as numbers: "T2 9" before "T2 10".
bool NaturallyLess(const std::string& a, const std::string& b);

}  // namespace cairn
