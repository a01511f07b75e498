// Files that are copied unchanged next to a result, through any file system: a tokenizer.
#pragma once

#include <map>
#include <string>

#include "ckpt/io/file_system.h"

namespace cairn {

struct FileToCopy {
  FileSystem* fs = nullptr;  // outlives the copy
  std::string path;
};
using FileCopies = std::map<std::string, FileToCopy>;  // by the name of the copy

}  // namespace cairn
