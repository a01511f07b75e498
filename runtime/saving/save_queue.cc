#include "runtime/saving/save_queue.h"

#include "runtime/control/background_thread.h"

namespace cairn {

SaveQueue::SaveQueue(Flush flush) : flush_(std::move(flush)), thread_([this] { Work(); }) {}

SaveQueue::~SaveQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SaveQueue::Push(std::shared_ptr<Save> save) {
  {
    const std::lock_guard lock(mutex_);
    saves_.push_back(std::move(save));
  }
  changed_.notify_all();
}

void SaveQueue::Work() {
  BecomeBackgroundThread();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !saves_.empty(); });
    if (saves_.empty()) return;
    const std::shared_ptr<Save> save = std::move(saves_.front());
    saves_.pop_front();
    lock.unlock();
    flush_(save);
    lock.lock();
  }
}

}  // namespace cairn
