#include "runtime/log/log_file.h"

#include <fcntl.h>

#include <cerrno>

#include "ckpt/base/posix_error.h"

namespace cairn {

// Non-blocking: a FIFO without a reader is an error here, and one whose reader sleeps does not stop a write.
Result<std::unique_ptr<LogFile>> LogFile::Open(const std::string& path, std::string name) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!fd.ok()) return PosixError("open", path, errno);
  return std::unique_ptr<LogFile>(new LogFile(std::move(fd), path, std::move(name)));
}

void LogFile::Add(std::string_view record) {
  if (pending_.size() + record.size() > kMaxPendingBytes)
    ++lost_;
  else
    pending_ += record;
}

Status LogFile::Write() {
  size_t done = 0;
  int error = 0;
  while (done < pending_.size() && error == 0) {
    const ssize_t written = ::write(fd_.get(), pending_.data() + done, pending_.size() - done);
    if (written > 0)
      done += static_cast<size_t>(written);
    else if (errno != EINTR)
      error = errno;
  }
  pending_.erase(0, done);
  return error == 0 ? OkStatus() : PosixError("write", path_, error);
}

}  // namespace cairn
