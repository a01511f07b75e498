// Members that a hierarchical store has moved to tape: recognised, and asked back in one go, in the order of
// the tape.
#pragma once

#include <string>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/io/file_facts.h"

namespace cairn {

struct RecallCommands {
  std::string stat;    // "hsm_pos {path}": prints where the file lies; sorted by that, numbers as numbers
  std::string recall;  // "dmget {paths}"; empty: what is on tape stays there, and is not read
};

// Far fewer blocks on the disk than bytes in the file, and not a small file: it lies on tape. A file that was
// cut to a hole by a crash looks the same; only a recall that does not bring it back tells them apart. Pure.
bool LooksLikeStub(const FileFacts& facts);
bool IsStub(const std::string& path);  // false if there is no such file

// "FILE: on tape, needs recall …"
Status NeedsRecall(const std::string& path);

// The files that are stubs, in the order of the tape; as given if there is no stat command.
// Errors: IoError where the command fails.
Result<std::vector<std::string>> StubsInTapeOrder(const std::vector<std::string>& paths,
                                                  const RecallCommands& commands);

// Asks for all stubs among `paths`, in batches. Returns those that are stubs still; without a recall command
// that is all of them, and none is touched. Errors: IoError where a command fails.
Result<std::vector<std::string>> TryRecall(const std::vector<std::string>& paths,
                                           const RecallCommands& commands);

// The same where all are needed. Returns how many there were. Errors: IoError too where one is a stub still;
// NeedsRecall's if there is no command.
Result<size_t> Recall(const std::vector<std::string>& paths, const RecallCommands& commands);

}  // namespace cairn
