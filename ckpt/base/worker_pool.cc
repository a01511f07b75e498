#include "ckpt/base/worker_pool.h"

#include <algorithm>

#include "ckpt/base/threads.h"

namespace cairn {

WorkerPool::WorkerPool(int threads, size_t waiting)
    : waiting_(waiting),
      threads_(StartThreads(std::max(1, threads), [this] { Work(); })),
      workers_(std::max<size_t>(1, threads_.size())) {}

Status WorkerPool::Push(Task task) {
  std::unique_lock lock(mutex_);
  taken_.wait(lock, [this] { return tasks_.size() < waiting_ || !status_.ok(); });
  if (!status_.ok()) return status_;
  if (threads_.empty()) return status_ = task(0);
  tasks_.push_back(std::move(task));
  given_.notify_one();
  return OkStatus();
}

Status WorkerPool::Finish() {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  given_.notify_all();
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
  return status_;
}

void WorkerPool::Work() {
  std::unique_lock lock(mutex_);
  const size_t worker = numbered_++;
  while (true) {
    given_.wait(lock, [this] { return finished_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    taken_.notify_one();
    if (!status_.ok()) continue;
    lock.unlock();
    Status status = Caught([&] { return task(worker); });
    lock.lock();
    if (status.ok() || !status_.ok()) continue;
    status_ = std::move(status);
    taken_.notify_all();
  }
}

}  // namespace cairn
