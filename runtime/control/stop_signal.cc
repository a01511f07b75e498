#include "runtime/control/stop_signal.h"

#include <atomic>
#include <csignal>
#include <thread>

namespace cairn {
namespace {

std::atomic<bool> deferred = false;
std::atomic<bool> requested = false;

// nohup has the program ignore SIGHUP; waiting for it would undo that.
bool IsNotIgnored(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_IGN;
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGUSR1);
  if (IsNotIgnored(SIGHUP)) sigaddset(&signals, SIGHUP);
  return signals;
}

void DieBySignal(int signal, const sigset_t& signals) {
  std::signal(signal, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  std::raise(signal);
}

void WaitForSignals() {
  const sigset_t signals = StopSignals();
  for (int signal = 0;;) {
    if (sigwait(&signals, &signal) != 0) continue;
    if (!deferred) DieBySignal(signal, signals);
    requested = true;
  }
}

}  // namespace

void WatchStopSignals() {
  for (int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // threads started from here on inherit it
  std::thread(WaitForSignals).detach();
}

void DeferStopSignals() { deferred = true; }
bool StopRequested() { return requested; }

}  // namespace cairn
