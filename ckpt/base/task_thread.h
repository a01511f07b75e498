// One thread that does tasks in order, behind the one that gives them. The first error ends all.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "ckpt/base/status.h"

namespace cairn {

class TaskThread {
 public:
  // At most `waiting` tasks wait behind the one that runs.
  explicit TaskThread(size_t waiting) : waiting_(waiting), thread_([this] { Run(); }) {}
  ~TaskThread() { (void)Finish(); }

  // Waits for room. The first error so far.
  Status Push(std::function<Status()> task) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.size() < waiting_ || !status_.ok(); });
    if (!status_.ok()) return status_;
    tasks_.push_back(std::move(task));
    changed_.notify_all();
    return OkStatus();
  }

  // Waits for all tasks; no more follow. The first error.
  Status Finish() {
    {
      const std::lock_guard lock(mutex_);
      finished_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    return status_;
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return finished_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      std::function<Status()> task = std::move(tasks_.front());
      tasks_.pop_front();
      changed_.notify_all();
      if (!status_.ok()) continue;
      lock.unlock();
      Status status = task();
      lock.lock();
      status_ = std::move(status);
      changed_.notify_all();
    }
  }

  const size_t waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<Status()>> tasks_;
  bool finished_ = false;
  Status status_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace cairn
