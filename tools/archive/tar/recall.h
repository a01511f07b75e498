// Recognises files that a hierarchical store has moved to tape, and recalls them together, in the order of
// the tape.
#pragma once

#include <string>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/io/file_system.h"

namespace cairn {

struct RecallCommands {
  std::string stat;    // "hsm_pos {path}": prints the file's place on tape; sorted by it as by strverscmp()
  std::string recall;  // "dmget {paths}"; empty: files on tape stay there and are not read
};

// True if a file that is not small has far fewer blocks on the disk than bytes: it is on tape. A file that a
// crash left as a hole looks the same; only a recall that fails to bring it back shows the difference. Pure.
bool LooksLikeStub(const FileInfo& info);
bool IsStub(FileSystem& fs, const std::string& path);  // false if the file does not exist

// Errors: "FILE: on tape, needs recall …" of the first stub.
Status CheckOnDisk(FileSystem& fs, const std::vector<std::string>& paths);

// The files that are stubs, in the order of the tape; as given if there is no stat command. Errors: IoError
// if the command fails.
Result<std::vector<std::string>> StubsInTapeOrder(FileSystem& fs, const std::vector<std::string>& paths,
                                                  const RecallCommands& commands);

// Recalls all stubs among `paths`, in batches. Returns those that are still stubs; without a recall command
// these are all of them, and none is touched. Errors: IoError if a command fails.
Result<std::vector<std::string>> TryRecall(FileSystem& fs, const std::vector<std::string>& paths,
                                           const RecallCommands& commands);

// The same if all are needed. Returns the number of stubs. Errors: also IoError if one is still a stub;
// those of CheckOnDisk without a command.
Result<size_t> Recall(FileSystem& fs, const std::vector<std::string>& paths, const RecallCommands& commands);

}  // namespace cairn
