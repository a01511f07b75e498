// Names as the file server has them. A client of a network file system caches whether a name exists or not.
// It asks the server when it opens a directory (Linux NFS, unless it is mounted with nocto). So a process
// that waits for a name from another host lists the directory, and never looks for a name that no listing has
// shown yet: the kernel remembers that it was missing, and no listing makes it forget that.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"

namespace cairn {

// The longest time for which clients answer from their cache by default (NFS: acdirmax). Only after this time
// does a name that is missing here prove that it is missing everywhere.
inline constexpr std::chrono::seconds kNamesStayOld{60};

// FileSystem::List of a directory that another host may make. Errors: NotFound, and then the directory was
// not looked for.
Result<std::vector<std::string>> ListFresh(FileSystem& fs, const std::string& directory);

// Whether the name exists. False if its directory cannot be listed.
bool IsListed(FileSystem& fs, const std::string& path);

}  // namespace cairn
