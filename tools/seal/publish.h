// Gives a sealed directory its final name. A directory that has that name changes places with it, so that
// the name always has a whole directory.
#pragma once

#include <string>

#include "ckpt/io/file_system.h"

namespace cairn {

// Where a directory waits while the one at `from` takes its name, on a file system that cannot exchange two
// names (NFS): .replaced/NAME next to `from`. After a kill it is still in that place.
std::string AsidePath(const std::string& from);

// Before hours of sealing, what would stop PublishDirectory. Errors: NotFound if the parent of `to` is
// missing; InvalidArgument inside of a step of Cairn; NotSupported if `to` exists and is not a directory that
// another system wrote; AlreadyExists if a publication was interrupted and `to` exists again.
Status CheckPublish(FileSystem& fs, const std::string& from, const std::string& to);

// Renames the directory `from` to `to`, durably. If `to` exists, `from` has its files afterwards. What an
// earlier publication left at AsidePath() is restored first. True if there was a `to`. Errors: those of the
// disk; nothing has changed then, or AsidePath() has the old directory.
Result<bool> PublishDirectory(FileSystem& fs, const std::string& from, const std::string& to);

}  // namespace cairn
