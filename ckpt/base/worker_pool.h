// Threads that do tasks in the order in which they are given. The first error ends the work: tasks that
// have not begun by then are dropped.
//
// If the system gives no thread (ulimit -u, memory), Push() does the task itself.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

class WorkerPool {
 public:
  // `worker`, below workers(), is the thread's number: for the memory that each keeps from task to task.
  using Task = std::function<Status(size_t worker)>;

  // At most `waiting` tasks wait for a thread.
  explicit WorkerPool(int threads, size_t waiting = SIZE_MAX);
  ~WorkerPool() { (void)Finish(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // At least 1, and at most as many as were asked for.
  size_t workers() const { return workers_; }

  // Waits for room. The first error so far; the task is dropped then.
  Status Push(Task task);

  // Waits for all tasks; no more follow. The first error.
  Status Finish();

 private:
  void Work();

  const size_t waiting_;
  std::mutex mutex_;
  std::condition_variable given_, taken_;
  std::deque<Task> tasks_;
  size_t numbered_ = 0;  // threads that know their number
  bool finished_ = false;
  Status status_;
  std::vector<std::thread> threads_;
  size_t workers_ = 1;
};

}  // namespace cairn
