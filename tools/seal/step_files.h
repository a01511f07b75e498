// The files below a sealed directory: names, sizes, and the times and inodes that reveal a change.
//
// Links are followed, as a loader follows them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/io/file_system.h"

namespace cairn {

struct StepFile {
  std::string name;  // a path below the directory
  uint64_t bytes = 0;
  int64_t modified_unix_seconds = 0;
  // For real files; zeros for others.
  int64_t modified_unix_nanoseconds = 0, changed_unix_nanoseconds = 0;
  uint64_t inode = 0;
  bool operator==(const StepFile&) const = default;
};

// Whether a file at this path below a sealed directory is part of the checkpoint. The seal itself is not, nor
// is the lock of a run of Cairn, which changes although the checkpoint does not. Earlier versions sealed such
// locks.
bool IsContent(std::string_view name);

// The content below `directory`, sorted by name. Errors: NotFound if the directory is missing, for a broken
// link, and for a file that vanishes meanwhile; NotSupported for anything that is not a file (for example a
// socket), and for directories that contain themselves through links.
Result<std::vector<StepFile>> ListStepFiles(FileSystem& fs, const std::string& directory);

// "DIR/" of a path below a tree; empty at its top.
std::string FolderOf(const std::string& name);

}  // namespace cairn
