#include "runtime/control/progress_thread.h"

#include <algorithm>
#include <utility>

namespace cairn {

ProgressThread::ProgressThread() : thread_([this] { Run(); }) {}

ProgressThread::~ProgressThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void ProgressThread::Watch(std::shared_ptr<Pollable> pollable) {
  bool slept = false;
  {
    const std::lock_guard lock(mutex_);
    slept = watched_.empty();
    watched_.push_back(std::move(pollable));
    pause_ = kShortest;
  }
  if (slept) changed_.notify_one();
}

// Polls without the lock: one poll may copy megabytes.
void ProgressThread::Run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (watched_.empty()) {
      changed_.wait(lock);
      continue;
    }
    std::vector<std::shared_ptr<Pollable>> polled = watched_;
    lock.unlock();
    std::erase_if(polled, [](const auto& pollable) { return !pollable->Poll(); });
    lock.lock();
    std::erase_if(watched_, [&](const auto& pollable) { return std::ranges::count(polled, pollable) > 0; });
    const auto pause = polled.empty() ? pause_ : kShortest;
    pause_ = std::min(2 * pause, kLongest);
    if (!stop_) changed_.wait_for(lock, pause);
  }
}

}  // namespace cairn
