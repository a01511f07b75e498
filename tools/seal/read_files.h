// Reads files once, several at the same time, for their digests; parts of them with a CRC-32 are compared
// with it on the way.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ckpt/base/digest.h"
#include "ckpt/io/file_system.h"
#include "convert/torch/zip_container.h"

namespace cairn {

struct FileToRead {
  std::string name;  // below the directory
  uint64_t bytes = 0;
  std::vector<ZipRecord> records = {};  // of zips in it
};

struct FileRead {
  Status status;  // Corrupt: shorter than it was, or a record is not what its CRC-32 says; those of the disk
  Digest digest{};
};

struct ReadFilesOptions {
  int jobs = 2;
  bool sync = false;                            // syncs each file first
  std::function<void(uint64_t)> progress = {};  // of the bytes done; from one thread at a time
  const std::atomic<bool>* stop = nullptr;      // once true, the remaining files are Aborted
};

// In the order of `files`.
std::vector<FileRead> ReadFiles(FileSystem& fs, const std::string& directory,
                                const std::vector<FileToRead>& files, const ReadFilesOptions& options);

}  // namespace cairn
