// The bytes of a test's files, read and damaged.
#pragma once

#include <fstream>

#include "ckpt/io/file_system.h"

namespace cairn {

inline std::string BytesOf(const std::string& path) {
  return ReadSmallFile(FileSystem::Posix(), path, 1 << 30).value();
}

inline void FlipByte(const std::string& path, uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(byte);
}

}  // namespace cairn
