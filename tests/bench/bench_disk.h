// Raw transfers between one warm buffer and one file: the speed of a disk and the page cache without a
// checkpoint in the way. Straight system calls, so that nothing of ckpt's own I/O is part of the limit it is
// held to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ckpt/base/status.h"

namespace cairn {

struct RawTransfer {
  enum class Engine { kThreads, kUring };
  Engine engine = Engine::kThreads;
  int depth = 4;             // transfers in flight
  uint64_t block = 8 << 20;  // bytes of one; a multiple of the page
  bool direct = true;        // O_DIRECT; buffered where false
};

// True if files in `directory` can be opened with O_DIRECT.
Result<bool> TakesDirect(const std::string& directory);
// True if the kernel lets this process use io_uring.
bool TakesUring();

// A name in `directory` that no other process uses; the file is removed with this object, and may never have
// been made.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& directory);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Creates `path`, reserves its space, writes all bytes, one fsync, closes. Seconds from open to close.
// Requires an aligned buffer of whole pages for direct transfers. Errors: IoError, NoSpace.
Result<double> RawWrite(const std::string& path, std::span<const std::byte> bytes, const RawTransfer& how);
// Fills `bytes` from the start of `path`. Seconds from open to close.
Result<double> RawRead(const std::string& path, std::span<std::byte> bytes, const RawTransfer& how);

// Writes back and drops the file's pages. Errors: IoError if some stay, so that no warm read is called
// cold.
Status MakeCold(const std::string& path);
// Reads the file until all of it lies in the page cache. Errors: IoError if it does not stay.
Status MakeWarm(const std::string& path);

}  // namespace cairn
