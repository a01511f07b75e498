// Facts that a directory keeps when it is renamed, and that differ in a copy: which directory it is.
#pragma once

#include <cstdint>
#include <string>

#include "ckpt/io/file_system.h"

namespace cairn {

struct DirectoryFacts {
  uint64_t inode = 0;
  int64_t born_unix_nanoseconds = 0;  // 0: the file system does not say
  // These two are not part of what it is. A clone of a file system has another device; a device has another
  // number after a restart of the host.
  uint64_t device = 0;
  uint32_t owner = 0;  // user id
  bool operator==(const DirectoryFacts& other) const {
    return inode == other.inode && born_unix_nanoseconds == other.born_unix_nanoseconds;
  }
};

// The facts of a directory of the real file system; a link is followed. Errors: NotFound, IoError.
Result<DirectoryFacts> FactsOfDirectory(const std::string& path);

// The facts of a file or directory of any file system; a link is not followed. A simulated file system knows
// only inodes.
Result<DirectoryFacts> FactsOf(FileSystem& fs, const std::string& path);

}  // namespace cairn
