// Written by write(2): a FILE keeps what it could not write, and fmt::print throws.
#include "runtime/control/console.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace cairn {
namespace {

constexpr int kPatienceMs = 1000;  // with a pipe that another process made non-blocking

// How much of the text was written.
size_t WriteTo(int fd, std::string_view text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(fd, text.data() + done, text.size() - done);
    if (written > 0) {
      done += static_cast<size_t>(written);
    } else if (errno == EAGAIN) {
      pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
      if (::poll(&ready, 1, kPatienceMs) <= 0) break;
    } else if (errno != EINTR) {
      break;
    }
  }
  return done;
}

}  // namespace

void Print(std::string_view text) {
  static std::mutex mutex;
  static bool torn = false;  // the last line that was written is not whole
  static OutputHealth health("standard output");
  const std::lock_guard lock(mutex);
  const std::string out = (torn ? "\n" : "") + std::string(text);
  errno = 0;
  const size_t done = WriteTo(STDOUT_FILENO, out);
  const Status status = done == out.size() ? OkStatus() : IoError("{}", std::strerror(errno));
  if (done > 0) torn = out[done - 1] != '\n';
  health.Note(status);
}

void Say(const std::string& line) { (void)WriteTo(STDERR_FILENO, "cairn-train: " + line + "\n"); }

void OutputHealth::Note(const Status& status, int64_t lost) {
  const std::lock_guard lock(mutex_);
  if (failing_ == !status.ok()) return;
  failing_ = !status.ok();
  if (failing_)
    Say(fmt::format("{} cannot be written: {}; training continues and tries again", name_, status.message()));
  else
    Say(fmt::format("{} works again{}", name_,
                    lost > lost_ ? fmt::format("; {} records are missing", lost - lost_) : ""));
  if (!failing_) lost_ = lost;
}

bool OutputHealth::failing() const {
  const std::lock_guard lock(mutex_);
  return failing_;
}

}  // namespace cairn
