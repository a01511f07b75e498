// Gives a directory the name of another one, on a file system that cannot exchange two names: NFS, Lustre,
// FUSE and others. FORMAT.md, "Commit".
//
// During one rename nothing has the name, and the old directory waits under another one. For a step that is
// saved again the names are then:
//
//   step-00000010.superseded-NONCE   the old step
//   step-00000010.partial-NONCE      the new one, whole and durable
//
// While both exist and step-00000010 does not, the old step is the step: readers find it under its other name
// (find_step.h), and a clean-up gives it its name back before it removes the new one (BringBack). Whatever a
// kill or a power loss leaves, one of the two directories is whole.
#pragma once

#include <string>

#include "ckpt/io/file_system.h"

namespace cairn {

// Durably renames the directory `to` to `aside`, and then `from` to `to`. `from` must be durable but for its
// name. Errors: those of the disk; `to` is the old directory again, or, if that failed as well, `aside` is.
Status ReplaceByRenames(FileSystem& fs, const std::string& from, const std::string& to,
                        const std::string& aside);

// Makes the names of `a` and then of `b` durable.
Status SyncAbove(FileSystem& fs, const std::string& a, const std::string& b);

// If the step of this partial directory waits aside, it gets its name back, durably.
Status BringBack(FileSystem& fs, const std::string& partial_dir);

}  // namespace cairn
