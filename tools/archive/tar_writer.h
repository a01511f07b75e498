// Writes a pax tar of regular files, front to back, in bounded memory.
//
// libarchive makes the headers. The file is padded with zeros to whole pages, as a tar may be, so that it can
// be written and read back past the page cache.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "tools/archive/stream_writer.h"

struct archive;

namespace cairn {

class TarWriter {
 public:
  static Result<std::unique_ptr<TarWriter>> Create(FileSystem& fs, WriteRing& ring, const std::string& path);
  ~TarWriter();
  TarWriter(const TarWriter&) = delete;
  TarWriter& operator=(const TarWriter&) = delete;

  // The next entry; Write() gives exactly `bytes` bytes of it.
  Status Begin(const std::string& name, uint64_t bytes, int64_t modified_unix_seconds);
  Status Write(std::span<const std::byte> bytes);
  // Ends the tar, syncs and closes it; its size. After any error the file is condemned: remove it.
  Result<uint64_t> Finish();

 private:
  explicit TarWriter(std::unique_ptr<StreamWriter> out);
  Status Check(int64_t result);
  Status EndEntry();

  std::unique_ptr<StreamWriter> out_;
  Status out_status_;  // the disk's own error, better than libarchive's word for it
  archive* writer_;
  std::string entry_;
  uint64_t missing_bytes_ = 0;  // of the current entry
};

// Upper bound of what an entry takes in the tar.
uint64_t TarEntryBytes(uint64_t bytes);

}  // namespace cairn
