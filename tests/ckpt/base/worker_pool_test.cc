#include "ckpt/base/worker_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>

#include "tests/support/no_threads.h"

namespace cairn {
namespace {

TEST(WorkerPool, ConcurrentTasksHaveDistinctNumbers) {
  WorkerPool pool(4);
  ASSERT_EQ(pool.workers(), 4u);
  std::latch all(4);
  std::atomic<unsigned> seen = 0;
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(pool.Push([&](size_t worker) {
                      all.arrive_and_wait();  // for ever, if fewer than four ran
                      seen |= 1u << worker;
                      return OkStatus();
                    })
                    .ok());
  EXPECT_TRUE(pool.Finish().ok());
  EXPECT_EQ(seen, 0b1111u);
}

TEST(WorkerPool, OneThreadKeepsTheOrder) {
  std::vector<int> done;
  WorkerPool pool(1, /*waiting=*/1);
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(pool.Push([&done, i](size_t) {
                      done.push_back(i);
                      return OkStatus();
                    })
                    .ok());
  EXPECT_TRUE(pool.Finish().ok());
  ASSERT_EQ(done.size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(done));
}

// One more task waits in the queue, and one waits for a place in it.
TEST(WorkerPool, TheFirstErrorDropsTasksThatHaveNotBegun) {
  std::atomic<int> runs = 0;
  WorkerPool pool(1, /*waiting=*/1);
  std::latch pushed(1);
  ASSERT_TRUE(pool.Push([&](size_t) {
                    pushed.wait();
                    return IoError("first");
                  })
                  .ok());
  const auto count = [&](size_t) {
    ++runs;
    return IoError("second");
  };
  ASSERT_TRUE(pool.Push(count).ok());
  pushed.count_down();
  Status status;
  while (status.ok()) status = pool.Push(count);
  EXPECT_EQ(status.message(), "first");
  EXPECT_EQ(pool.Finish().message(), "first");
  EXPECT_EQ(pool.Finish().message(), "first");
  EXPECT_EQ(runs, 0);
}

TEST(WorkerPool, WithoutThreadsPushRunsTheTask) {
  const NoThreads none;
  WorkerPool pool(4, /*waiting=*/1);
  EXPECT_EQ(pool.workers(), 1u);
  int runs = 0;
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(pool.Push([&](size_t worker) {
                    EXPECT_EQ(worker, 0u);
                    return ++runs == 2 ? IoError("second") : OkStatus();
                  })
                  .ok(),
              i == 0);
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(pool.Finish().message(), "second");
}

}  // namespace
}  // namespace cairn
