// Formats that are known by their files' names and are not read.
#pragma once

#include "ckpt/io/file_system.h"

namespace cairn {

// Errors: NotSupported naming the format that `path` (a directory or a file) is in, and what to do.
Status CheckUnsupported(FileSystem& fs, const std::string& path);

}  // namespace cairn
