// What the operating system knows of a file beyond FileInfo, for real files only.
#pragma once

#include <cstdint>
#include <string>

namespace cairn {

struct FileFacts {
  int64_t changed_unix_nanoseconds = 0;  // of the inode: moves with every write, rename and chmod
  uint64_t bytes = 0;
  uint64_t allocated_bytes = 0;  // on the disk; far below `bytes` for what was moved to tape
  int64_t modified_unix_nanoseconds = 0;
  uint64_t inode = 0;
};

// All zero where the path is none of the operating system's.
FileFacts FactsOf(const std::string& path);

}  // namespace cairn
