#include "runtime/stop_signal.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <thread>

namespace cairn {
namespace {

bool IsBlocked(int signal) {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, signal) == 1;
}

void SendAndWait(int signal) {
  kill(getpid(), signal);
  while (!StopRequested()) std::this_thread::yield();
}

TEST(StopSignalDeathTest, EndsTheProcessUntilItIsDeferred) {
  for (int signal : {SIGTERM, SIGUSR1})
    EXPECT_EXIT(
        {
          WatchStopSignals();
          SendAndWait(signal);
        },
        testing::KilledBySignal(signal), "");
}

TEST(StopSignalDeathTest, IsAFlagOnceDeferred) {
  for (int signal : {SIGTERM, SIGUSR1})
    EXPECT_EXIT(
        {
          WatchStopSignals();
          DeferStopSignals();
          const bool before = StopRequested();
          SendAndWait(signal);
          std::exit(before ? 1 : 0);
        },
        testing::ExitedWithCode(0), "");
}

// A handler's frame on the stack of a thread that computes can overwrite the heap.
TEST(StopSignalDeathTest, ReachesNoOtherThread) {
  EXPECT_EXIT(
      {
        WatchStopSignals();
        bool blocked = IsBlocked(SIGTERM) && IsBlocked(SIGUSR1);
        std::thread([&] { blocked &= IsBlocked(SIGTERM) && IsBlocked(SIGUSR1); }).join();
        std::exit(blocked ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cairn
