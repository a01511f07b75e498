#include "runtime/stop_signal.h"

#include <csignal>

namespace cairn {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

void OnSignal(int) { stop_requested = 1; }

}  // namespace

void InstallStopSignals() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
}

bool StopRequested() { return stop_requested != 0; }

}  // namespace cairn
