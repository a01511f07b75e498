#include "runtime/control/progress_thread.h"

#include <gtest/gtest.h>

#include <atomic>

namespace cairn {
namespace {

// Done after the given number of polls; counts them.
class Countdown : public Pollable {
 public:
  explicit Countdown(int polls) : left_(polls) {}
  bool Poll() override {
    const std::lock_guard lock(mutex_);
    if (left_ > 0) --left_;
    done_ = left_ == 0;
    return done_;
  }
  void Await() const {
    while (!done_) std::this_thread::yield();
  }
  int left() const { return left_; }

 private:
  std::mutex mutex_;
  std::atomic<int> left_;
  std::atomic<bool> done_ = false;
};

TEST(ProgressThreadTest, PollsEachUntilItIsDoneWithoutAWaiter) {
  ProgressThread progress;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::shared_ptr<Countdown>> all;
    for (int polls = 1; polls <= 5; ++polls) {
      all.push_back(std::make_shared<Countdown>(polls));
      progress.Watch(all.back());
    }
    for (const auto& one : all) one->Await();
  }
}

TEST(ProgressThreadTest, ReleasesCompletedWork) {
  ProgressThread progress;
  const auto one = std::make_shared<Countdown>(3);
  progress.Watch(one);
  one->Await();
  progress.Watch(std::make_shared<Countdown>(1));
  while (one.use_count() > 1) std::this_thread::yield();
}

TEST(ProgressThreadTest, StopsPollingWhenItIsDestroyed) {
  const auto endless = std::make_shared<Countdown>(1 << 30);
  { ProgressThread().Watch(endless); }
  const int left = endless->left();
  EXPECT_EQ(endless.use_count(), 1);
  EXPECT_EQ(endless->left(), left);
}

TEST(ProgressThreadTest, AnOwnerMayAlsoPoll) {
  ProgressThread progress;
  for (int i = 0; i < 50; ++i) {
    const auto one = std::make_shared<Countdown>(40);
    progress.Watch(one);
    while (!one->Poll()) std::this_thread::yield();
  }
}

}  // namespace
}  // namespace cairn
