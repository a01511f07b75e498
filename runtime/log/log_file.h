// A text file that grows by whole lines during a training. If the disk is full, lines wait in memory until
// there is room again, up to a bound; no line stays torn.
#pragma once

#include <cstdint>
#include <string>

#include "ckpt/base/status.h"
#include "ckpt/base/unique_fd.h"

namespace cairn {

// Not thread-safe. The destructor drops what was not flushed.
class LogFile {
 public:
  static constexpr size_t kMaxPendingBytes = 1 << 20;

  // Appends to what is there. Errors: NotFound, IoError.
  static Result<LogFile> Open(const std::string& path);

  // `line` ends in its newline. It is given up, and counted, where kMaxPendingBytes wait already.
  void Add(std::string_view line);
  // Hands all lines to the operating system. Errors: NoSpace, IoError; what is left waits for the next call.
  Status Flush();
  int64_t lost() const { return lost_; }  // lines given up

 private:
  LogFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  UniqueFd fd_;
  std::string path_;
  std::string pending_;
  int64_t lost_ = 0;
};

}  // namespace cairn
