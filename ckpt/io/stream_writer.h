// Writes a new file front to back through the write ring, past the page cache if the file system allows it.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "ckpt/io/write_ring.h"

namespace cairn {

class StreamWriter {
 public:
  // `bytes` is the final size of the file: O_DIRECT is used only for a multiple of kPageBytes. Errors:
  // AlreadyExists, those of the disk.
  static Result<std::unique_ptr<StreamWriter>> Create(FileSystem& fs, WriteRing& ring,
                                                      const std::string& path, uint64_t bytes);
  ~StreamWriter() { (void)ring_.Drain(); }  // writes in flight refer to the file
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  // Returns once copied. Errors: an earlier write's.
  Status Append(std::span<const std::byte> bytes);
  // Leaves a hole of whole pages, at a page's begin; something must follow it.
  Status Skip(uint64_t bytes);
  // Writes the rest and waits for it; whole pages must have been appended if O_DIRECT is used.
  Status Drain();
  // Writes the rest, syncs and closes. After an error the file is condemned: remove it.
  Status Finish();

  uint64_t bytes() const { return out_.offset(); }  // appended or skipped

 private:
  StreamWriter(WriteRing& ring, std::unique_ptr<File> file)
      : ring_(ring), file_(std::move(file)), out_(ring, file_.get(), 0) {}

  WriteRing& ring_;
  std::unique_ptr<File> file_;
  SequentialWriter out_;
};

}  // namespace cairn
