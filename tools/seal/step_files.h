// The files below a directory that is to be sealed or was: names, sizes, and what tells that one changed.
//
// Links are followed: what counts is what a loader would read.
#pragma once

#include <cstdint>
#include <string>
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

// All files below `directory` but its seal, by name. Errors: NotFound if there is no directory, for a link
// that leads nowhere, and for what vanishes meanwhile; NotSupported for what is not a file (a socket, say),
// and for directories that contain themselves by way of links.
Result<std::vector<StepFile>> ListStepFiles(FileSystem& fs, const std::string& directory);

// "DIR/" of a path below a tree; empty at its top.
std::string FolderOf(const std::string& name);

}  // namespace cairn
