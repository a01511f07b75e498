#include "ckpt/base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>

#include "ckpt/base/worker_pool.h"
#include "ckpt/io/file_system.h"
#include "tests/support/no_threads.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

TEST(Threads, RunsTheRequestedNumberOfThreads) {
  std::atomic<int> runs = 0;
  RunOnThreads(5, [&] { ++runs; });
  EXPECT_EQ(runs, 5);
  RunOnThreads(0, [&] { ++runs; });
  EXPECT_EQ(runs, 6);
}

// It used to abort.
TEST(Threads, WorkIsDoneIfNoThreadCanStart) {
  const NoThreads none;
  std::atomic<int> runs = 0;
  RunOnThreads(5, [&] { ++runs; });
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(StartThreads(3, [] {}).empty());
}

TEST(Threads, AQueueTransfersIfNoThreadCanStart) {
  TempDir dir;
  auto file = FileSystem::Posix().Create(dir / "f");
  ASSERT_TRUE(file.ok());
  const NoThreads none;
  const auto queue = NewThreadQueue(4);
  const std::string text = "abcd";
  queue->Write(**file, 0, std::as_bytes(std::span(text)), 7);
  EXPECT_EQ(queue->in_flight(), 1);
  const auto written = queue->Wait();
  EXPECT_TRUE(written.status.ok());
  EXPECT_EQ(written.tag, 7u);
  std::string read(4, ' ');
  queue->Read(**file, 0, std::as_writable_bytes(std::span(read)), 8);
  EXPECT_TRUE(queue->Wait().status.ok());
  EXPECT_EQ(read, text);
}

// They used to end the process.
TEST(Threads, ExceptionsReachTheWaitingCaller) {
  std::atomic<int> runs = 0;
  const auto fails = [&] {
    if (++runs == 2) throw std::bad_alloc();
  };
  EXPECT_THROW(RunOnThreads(3, fails), std::bad_alloc);
  EXPECT_EQ(runs, 3);
  WorkerPool pool(2);
  ASSERT_TRUE(pool.Push([](size_t) -> Status { throw std::bad_alloc(); }).ok());
  const Status failed = pool.Finish();
  EXPECT_NE(failed.message().find("out of memory"), std::string::npos);
  EXPECT_EQ(failed.kind(), StatusKind::kNoSpace);  // no peer was lost, no file is damaged
}

TEST(Threads, AFailedStartNamesTheLimitToRaise) {
  const NoThreads none;
  try {
    std::thread([] {}).join();
    FAIL() << "a thread started";
  } catch (const std::exception& error) {
    EXPECT_NE(TextOf(error).find("cannot start a thread"), std::string::npos);
    EXPECT_NE(TextOf(error).find("ulimit -u"), std::string::npos);
  }
  EXPECT_NE(TextOf(std::bad_alloc()).find("out of memory"), std::string::npos);
  EXPECT_EQ(TextOf(std::runtime_error("else")), "else");
}

}  // namespace
}  // namespace cairn
