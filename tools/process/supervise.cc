#include "tools/process/supervise.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ckpt/base/child.h"

namespace cairn {
namespace {

constexpr int kCannotStart = 127;  // as of a shell

[[noreturn]] void BecomeChild(const std::vector<std::string>& command, const sigset_t& original) {
  ::setpgid(0, 0);  // a terminal's Ctrl-C then reaches only the parent
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  ::sigprocmask(SIG_SETMASK, &original, nullptr);
  (void)Become(command);
  ::_exit(kCannotStart);
}

}  // namespace

Status Become(const std::vector<std::string>& command) {
  ::execvp(command[0].c_str(), Arguments(command).data());
  return NotFound("cannot start {}: {}", command[0], strerror(errno));
}

Result<int> Supervise(const std::vector<std::string>& command, const std::function<void()>& stopping) {
  sigset_t watched, original;
  sigemptyset(&watched);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGCHLD}) sigaddset(&watched, signal);
  struct sigaction hang_up;  // ignored under nohup, and to stay so
  if (::sigaction(SIGHUP, nullptr, &hang_up) != 0 || hang_up.sa_handler != SIG_IGN)
    sigaddset(&watched, SIGHUP);
  ::sigprocmask(SIG_BLOCK, &watched, &original);
  const pid_t child = ::fork();
  if (child < 0) return IoError("fork: {}", strerror(errno));
  if (child == 0) BecomeChild(command, original);
  ::signal(SIGPIPE, SIG_IGN);  // with or without a reader for its own few lines

  for (bool asked = false; true;) {
    const int signal = ::sigwaitinfo(&watched, nullptr);
    if (signal == SIGUSR1 || signal == SIGUSR2) ::kill(child, signal);
    if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {
      if (!asked) stopping();
      ::kill(child, asked ? SIGTERM : SIGUSR1);
      asked = true;
    }
    int status = 0;
    if (signal != SIGCHLD || ::waitpid(child, &status, WNOHANG) != child) continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotStart)
      return NotFound("cannot start {}; is Open MPI installed (openmpi-bin)?", command[0]);
    return ExitStatusOf(status);
  }
}

}  // namespace cairn
