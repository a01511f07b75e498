// Names as the file server has them. A client of a network file system caches whether a name exists or not.
// The real file system (FileSystem::Posix) asks the server again before it says that a name is missing. That
// a name still exists is asked only when a directory is opened (Linux NFS, unless it is mounted with nocto):
// so a process that waits for another host lists directories.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"

namespace cairn {

// The longest time for which clients answer from their cache by default (NFS: acdirmax). Only after this time
// does a name that is missing here prove that it is missing everywhere.
inline constexpr std::chrono::seconds kNamesStayOld{60};

// FileSystem::List, also if this host has cached that the directory, or one above it, does not exist.
Result<std::vector<std::string>> ListFresh(FileSystem& fs, const std::string& directory);

// Whether the name exists. False if its directory cannot be listed.
bool IsListed(FileSystem& fs, const std::string& path);

// For a path that the kernel has just called missing: asks the servers of NFS and FUSE, from the top of the
// path. True if it exists after all; then the kernel knows it from now on.
bool IsThereAfterAll(const std::string& path);

}  // namespace cairn
