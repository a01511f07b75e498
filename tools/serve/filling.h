// How far a trainer has filled the memory that a save is written from.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "ckpt/base/status.h"

namespace cairn {

// Any thread may ask or tell it.
class Filling {
 public:
  // The first `bytes` bytes are there.
  void Reach(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes > reached_) reached_ = bytes;
    changed_.notify_all();
  }
  // No more will come; what was reached stays.
  void End(Status why) {
    const std::lock_guard lock(mutex_);
    if (ended_.ok()) ended_ = std::move(why);
    changed_.notify_all();
  }
  // Returns when the first `bytes` bytes are there. Errors: what End said.
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
