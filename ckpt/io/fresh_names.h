// Names as the file server has them. A client of a network file system answers from memory whether a name is
// there, and whether it is not. It asks the server when it opens a directory (Linux NFS, unless it is mounted
// with nocto). So who waits for a name that another host makes lists the directory.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"

namespace cairn {

// The longest time for which clients answer from memory by default (NFS: acdirmax). Only after it may a
// process conclude from a name that is missing here that it is missing everywhere.
inline constexpr std::chrono::seconds kNamesStayOld{60};

// FileSystem::List, also if this host remembers that the directory, or one above it, was not there.
Result<std::vector<std::string>> ListFresh(FileSystem& fs, const std::string& directory);

// Whether the name is there. False if its directory cannot be listed.
bool IsListed(FileSystem& fs, const std::string& path);

}  // namespace cairn
