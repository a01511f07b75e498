// A handler may do almost nothing, so it passes the signal to a thread through a pipe.
#include "tools/cli/stop_signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>
#include <thread>

#include "ckpt/step/partial_dir.h"

namespace cairn {
namespace {

int to_thread = -1;

void PassOn(int signal) {
  const int saved = errno;
  const auto number = static_cast<unsigned char>(signal);
  (void)!::write(to_thread, &number, 1);
  errno = saved;
}

void EndBySignal(int from_handler) {
  unsigned char number = 0;
  while (::read(from_handler, &number, 1) != 1) {
  }
  RemovePartialDirs();
  (void)std::signal(number, SIG_DFL);
  ::kill(::getpid(), number);
}

}  // namespace

void RemoveOutputsAtSignals() {
  int ends[2];
  if (to_thread >= 0 || ::pipe2(ends, O_CLOEXEC) != 0) return;
  try {
    std::thread(EndBySignal, ends[0]).detach();
  } catch (const std::system_error&) {  // the next run removes what a signal leaves
    return;
  }
  to_thread = ends[1];
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGPIPE}) {
    struct sigaction action = {};
    if (::sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = PassOn;
    // A second signal ends the process at once, but each write to a closed pipe is one.
    action.sa_flags = SA_RESTART | (number == SIGPIPE ? 0 : SA_RESETHAND);
    ::sigaction(number, &action, nullptr);
  }
}

}  // namespace cairn
