#include "runtime/control/watchdog.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "runtime/control/status_board.h"

namespace cairn {
namespace {

// A job of two ranks: this is rank 0, and there is no rank 1.
void StartAlone(double timeout_seconds) {
  std::shared_ptr<StatusBoard> board = StatusBoard::Private(0, {"here", "there"});
  Watchdog::Start({.rank = 0,
                   .host = "here",
                   .timeout_seconds = timeout_seconds,
                   .board = std::move(board),
                   .abort = {}});
}

Watchdog::Operation Bucket() {
  return {.name = "all-reduce",
          .tensor = "bucket 2",
          .group = "dp",
          .group_id = 1,
          .sequence = 5,
          .peers = {0, 1}};
}

void Sleep(double seconds) { usleep(static_cast<useconds_t>(seconds * 1e6)); }

TEST(WatchdogUnitTest, OperationsThatEndInTimeAreNotReported) {
  StartAlone(0.2);
  for (int i = 0; i < 10; ++i) {
    const Watchdog::Scope scope(Bucket());
    Sleep(0.05);
  }
  Watchdog::Stop();
}

TEST(WatchdogUnitTest, CompletedAdoptedWorkIsForgotten) {
  StartAlone(0.3);
  std::atomic<bool> done = false;
  for (int i = 0; i < 10; ++i) Watchdog::Adopt(Watchdog::Scope(Bucket()), [&] { return done.load(); });
  Sleep(0.1);
  done = true;
  Sleep(0.5);
  Watchdog::Stop();
}

TEST(WatchdogUnitTest, ScopesOutsideAJobDoNothing) {
  const Watchdog::Scope scope(Bucket());
  Watchdog::SetStep(3);
  EXPECT_EQ(Watchdog::Describe(1), "rank 1");
}

TEST(WatchdogDeathTest, UnfinishedAdoptedWorkStopsTheRank) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        StartAlone(0.2);
        Watchdog::SetStep(17);
        Watchdog::Adopt(Watchdog::Scope(Bucket()), [] { return false; });
        Sleep(20);
      },
      testing::ExitedWithCode(kExitLostPeer),
      "cairn: rank 0 .host here, pid [0-9]+. in step 17: all-reduce of dp/bucket 2 .operation 5, ranks 0,1. "
      "did not "
      "complete within 0.2 s; on other hosts, state unknown: rank 1 .host there.");
}

// Rank 0 waits for rank 1, which is heard: both wait for a host that is not.
TEST(WatchdogDeathTest, NamesTheSilentHostNotTheWaitingOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::shared_ptr<StatusBoard> board = StatusBoard::Private(0, {"n1", "n2", "n3"});
        board->SetFirstRanks({0, 1, 2}, 1);
        board->Hear(2);
        Watchdog::Start({.rank = 0, .host = "n1", .timeout_seconds = 2, .board = board, .abort = {}});
        Watchdog::Adopt(Watchdog::Scope(Bucket()), [] { return false; });
        while (true) {
          board->Hear(0);
          board->Hear(1);
          Sleep(0.01);
        }
      },
      testing::ExitedWithCode(kExitLostPeer),
      "did not complete within 2 s; host n3 .first rank 2. fell silent first, [0-9.]+ s ago; stopping all");
}

// No heartbeat arrives: the job continues, and one line reports it before the deadline.
TEST(WatchdogDeathTest, HostsNeverHeardAreReportedButNotBlamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::shared_ptr<StatusBoard> board = StatusBoard::Private(0, {"n1", "n2"});
        board->SetFirstRanks({0, 1}, 0.2);
        board->Hear(0);
        Watchdog::Start({.rank = 0, .host = "n1", .timeout_seconds = 2, .board = board, .abort = {}});
        Watchdog::Adopt(Watchdog::Scope(Bucket()), [] { return false; });
        Sleep(20);
      },
      testing::ExitedWithCode(kExitLostPeer),
      "rank 0 .host n1.: no heartbeat of host n2 .first rank 1. arrives .*\n"
      ".* within 2 s; on other hosts, state unknown: rank 1 .host n2.; stopping all ranks");
}

TEST(WatchdogDeathTest, AWaitOnlyOnTheBoardDoesNotStopTheRank) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        StartAlone(0.2);
        const Watchdog::Scope scope(
            {.name = "vote", .tensor = "commit", .group = "control", .peers = {}, .fatal = false});
        Sleep(1);
        _exit(7);
      },
      testing::ExitedWithCode(7), "");
}

// A scheduler that suspends a job and resumes it later must not find all deadlines passed.
TEST(WatchdogDeathTest, SuspendedTimeDoesNotCount) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        StartAlone(2.5);
        const Watchdog::Scope scope(Bucket());
        const pid_t self = getpid();
        if (fork() == 0) {
          kill(self, SIGSTOP);
          Sleep(4);
          kill(self, SIGCONT);
          _exit(0);
        }
        Sleep(4.5);
        _exit(7);
      },
      testing::ExitedWithCode(7), "");
}

TEST(StatusBoardTest, DescribesWhereARankIs) {
  auto board = StatusBoard::Private(0, {"here"});
  EXPECT_NE(board->Describe(0).find("in no operation since it started"), std::string::npos);
  board->SetStep(4);
  const int outer = board->Enter("all-reduce of dp/a");
  EXPECT_TRUE(board->Waits(0));
  EXPECT_NE(board->Describe(0).find("in step 4, for 0.0 s in all-reduce of dp/a"), std::string::npos);
  const int inner = board->Enter("gather of control/b");
  EXPECT_NE(board->Describe(0).find("in all-reduce of dp/a"), std::string::npos)
      << "the longest wait is shown";
  board->Leave(outer);
  EXPECT_NE(board->Describe(0).find("in gather of control/b"), std::string::npos);
  board->Leave(inner);
  EXPECT_NE(board->Describe(0).find("in no operation since it left gather of control/b"), std::string::npos);
  EXPECT_FALSE(board->Waits(0));
}

TEST(StatusBoardTest, NamesTheHostIfThereAreSeveral) {
  EXPECT_EQ(StatusBoard::Private(0, {"a", "a"})->Name(1), "rank 1");
  EXPECT_EQ(StatusBoard::Private(0, {"a", "b"})->Name(1), "rank 1 (host b)");
  const auto equal_names = StatusBoard::Private(0, {"localhost", "localhost"});
  equal_names->SetFirstRanks({0, 1}, 1);
  EXPECT_EQ(equal_names->Name(1), "rank 1 (host localhost)");
}

TEST(StatusBoardTest, RanksThatShareABoardSeeEachOther) {
  const std::string key = "test-" + std::to_string(getpid());
  auto first = StatusBoard::Open(key, 0, {"here", "here"});
  auto second = StatusBoard::Open(key, 1, {"here", "here"});
  ASSERT_TRUE(first.ok() && second.ok());
  (*first)->Unlink();
  (*second)->Unlink();
  EXPECT_TRUE((*first)->Knows(1));
  (*second)->Arrive(3, 9);
  EXPECT_TRUE((*first)->Arrived(1, 3, 9));
  EXPECT_FALSE((*first)->Arrived(1, 3, 10));
  EXPECT_TRUE((*second)->ClaimStopping());
  EXPECT_FALSE((*first)->ClaimStopping());
  EXPECT_TRUE((*first)->stopping());
  EXPECT_NE(access(("/dev/shm/cairn-" + key).c_str(), F_OK), 0) << "its file is gone";
}

}  // namespace
}  // namespace cairn
