// How many bytes of a save's memory the trainer has filled.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "ckpt/base/status.h"

namespace cairn {

// Safe from several threads.
class Filling {
 public:
  // The first `bytes` bytes are filled.
  void Reach(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes > reached_) reached_ = bytes;
    changed_.notify_all();
  }
  // No more bytes will come.
  void End(Status why) {
    const std::lock_guard lock(mutex_);
    if (ended_.ok()) ended_ = std::move(why);
    changed_.notify_all();
  }
  // Waits for the first `bytes` bytes. Errors: the status given to End().
  Status WaitFor(uint64_t bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= bytes || !ended_.ok(); });
    return reached_ >= bytes ? OkStatus() : ended_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t reached_ = 0;
  Status ended_;
};

}  // namespace cairn
