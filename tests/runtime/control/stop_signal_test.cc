#include "runtime/control/stop_signal.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
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
  for (int signal : {SIGTERM, SIGUSR1, SIGHUP})
    EXPECT_EXIT(
        {
          WatchStopSignals();
          SendAndWait(signal);
        },
        testing::KilledBySignal(signal), "");
}

TEST(StopSignalDeathTest, SetsAFlagOnceDeferred) {
  for (int signal : {SIGTERM, SIGUSR1, SIGHUP})
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
        const auto all = [] { return IsBlocked(SIGTERM) && IsBlocked(SIGUSR1) && IsBlocked(SIGHUP); };
        bool blocked = all();
        std::thread([&] { blocked &= all(); }).join();
        std::exit(blocked ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// As nohup leaves it.
TEST(StopSignalDeathTest, LeavesAnIgnoredHangUpIgnored) {
  EXPECT_EXIT(
      {
        std::signal(SIGHUP, SIG_IGN);
        WatchStopSignals();
        kill(getpid(), SIGHUP);
        DeferStopSignals();
        std::exit(IsBlocked(SIGHUP) || StopRequested() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

bool WritesFailWithErrors() {
  int ends[2];
  if (pipe(ends) != 0 || close(ends[0]) != 0) return false;
  if (write(ends[1], "x", 1) >= 0 || errno != EPIPE) return false;
  std::FILE* file = std::tmpfile();
  const rlimit limit{.rlim_cur = 0, .rlim_max = RLIM_INFINITY};
  if (file == nullptr || setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
  return write(fileno(file), "x", 1) < 0 && errno == EFBIG;
}

TEST(StopSignalDeathTest, AFailedWriteIsAnErrorNotASignal) {
  EXPECT_EXIT(
      {
        WatchStopSignals();
        std::exit(WritesFailWithErrors() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cairn
