// The files below a sealed directory: names, sizes, and the times and inodes that reveal a change.
//
// Links are followed, as a loader follows them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/place/found_step.h"

namespace cairn {

inline constexpr std::string_view kSealName = ".cairn-seal.json";  // tools/seal/seal_record.h

struct StepFile : FileInfo {
  std::string name;  // a path below the directory

  // The same file, untouched.
  bool operator==(const StepFile& other) const;
};

// Whether a file at this path below a sealed directory is part of the checkpoint. The seal itself is not, nor
// is the lock of a run of Cairn, which changes although the checkpoint does not. Earlier versions sealed such
// locks.
bool IsContent(std::string_view name);

// The content below `directory`, sorted by name; of a step that is a file, this file. Errors: NotFound if the
// directory is missing, for a broken link, and for a file that vanishes meanwhile; NotSupported for anything
// that is not a file (for example a socket), and for directories that contain themselves through links.
Result<std::vector<StepFile>> ListStepFiles(FileSystem& fs, const std::string& directory);

FileTimes TimesOf(const std::vector<StepFile>& files);
// The same of the files `names` in `directory`; one that has vanished meanwhile does not count.
FileTimes TimesOf(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names);

// "DIR/" of a path below a tree; empty at its top.
std::string FolderOf(const std::string& name);

}  // namespace cairn
