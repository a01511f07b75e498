// A file that grows by whole records during a training: lines, or those of TensorBoard. If the disk is full,
// records wait in memory until there is room again, up to a bound; no partial record remains.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ckpt/base/status.h"
#include "ckpt/base/unique_fd.h"
#include "runtime/control/console.h"

namespace cairn {

// Not thread-safe. The destructor drops what was not flushed.
class LogFile {
 public:
  static constexpr size_t kMaxPendingBytes = 1 << 20;

  // Appends if the file exists. `name`: as the user calls it, "--log-json FILE". Errors: NotFound, IoError.
  static Result<std::unique_ptr<LogFile>> Open(const std::string& path, std::string name);

  // A line ends in its newline. A record is dropped, and counted, if kMaxPendingBytes are already waiting.
  void Add(std::string_view record);
  // Hands all records to the operating system, but does not sync them. Errors: NoSpace, IoError; what is left
  // waits for the next call.
  Status Write();
  // The same; a failure is reported, once (console.h).
  void Flush() { health_.Note(Write(), lost_); }

  bool failing() const { return health_.failing(); }
  int64_t lost() const { return lost_; }  // records given up
  const std::string& path() const { return path_; }

 private:
  LogFile(UniqueFd fd, const std::string& path, std::string name)
      : fd_(std::move(fd)), path_(path), health_(std::move(name)) {}

  const UniqueFd fd_;
  const std::string path_;
  OutputHealth health_;
  std::string pending_;
  int64_t lost_ = 0;
};

}  // namespace cairn
