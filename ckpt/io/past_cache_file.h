// Reads a file from its disk rather than from the page cache: proof that bytes were stored, not that they are
// still in memory.
#pragma once

#include "ckpt/io/file_system.h"

namespace cairn {

// Reads any range. O_DIRECT if the file system allows it and the size is a multiple of kPageBytes; otherwise
// the kernel is asked to drop its clean pages of the file first. Safe from several threads.
Result<std::unique_ptr<File>> OpenPastCache(FileSystem& fs, const std::string& path);

}  // namespace cairn
