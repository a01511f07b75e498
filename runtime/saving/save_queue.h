// A thread that does one save after the other, in the order in which it was given them.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace cairn {

struct Save;

class SaveQueue {
 public:
  using Flush = std::function<void(const std::shared_ptr<Save>&)>;

  explicit SaveQueue(Flush flush);
  ~SaveQueue();  // finishes what it was given

  void Push(std::shared_ptr<Save> save);

 private:
  void Work();

  const Flush flush_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Save>> saves_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace cairn
