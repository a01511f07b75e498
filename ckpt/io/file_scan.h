// Reads a file once from front to back, as fast as possible: what is in the page cache is used in place (or
// copied, if it must not change between two looks), the rest is read past it, a few large reads in flight.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "ckpt/io/extent_reader.h"

namespace cairn {

class FileScan {
 public:
  // Reads the first `bytes` of the file. Errors: those of FileSystem::OpenForRead.
  static Result<std::unique_ptr<FileScan>> Open(FileSystem& fs, const std::string& path, uint64_t bytes,
                                                Direct direct = Direct::kAuto, bool may_map = true);

  // The next bytes: at least one and `most` at most; valid until the next call. Requires offset() < bytes and
  // most > 0. Errors: those of File::ReadAt.
  Result<std::span<const std::byte>> Next(uint64_t most);
  uint64_t offset() const { return offset_; }

 private:
  FileScan(FileSystem& fs, const std::string& path, uint64_t bytes, Direct direct, bool may_map);
  Status Fetch();
  void StartReads();

  const std::string path_;
  const uint64_t bytes_;
  OpenFiles files_;
  uint64_t offset_ = 0;                               // of what Next() gives next
  uint64_t started_ = 0;                              // where the next read begins
  ExtentReader::Finished window_;                     // that Next() gives from
  std::span<const std::byte> current_;                // what is left of it at offset_
  std::map<uint64_t, ExtentReader::Finished> ready_;  // windows behind it, by offset
  ExtentReader reader_;
};

}  // namespace cairn
