// Which checkpoints `cairn verify` checks for a directory.
#pragma once

#include <string>
#include <vector>

#include "ckpt/io/file_system.h"

namespace cairn {

// The steps of Cairn at `path`: itself, or all steps or the newest step of a run. Unlike elsewhere, a newest
// step that is damaged is not passed over. Errors: NotFound if there is nothing to check.
Result<std::vector<std::string>> StepsToCheck(FileSystem& fs, const std::string& path, bool all);

// The checkpoints that `path` means if another system may have written it: itself, or all steps or the newest
// step of a run.
std::vector<std::string> CheckpointsAt(FileSystem& fs, const std::string& path, bool all);

}  // namespace cairn
