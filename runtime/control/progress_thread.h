// A thread that drives messages which would otherwise move only while a thread waits for them.
//
// MPI sends a long message when its sender and its receiver both call it: a sender that computes leaves the
// receiver waiting. This thread polls what is under way, at once after something new was handed over, then
// less and less often while nothing ends, and sleeps while there is nothing.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace cairn {

// Something that moves when it is polled. Poll is called from the thread and from whoever waits for it.
class Pollable {
 public:
  virtual ~Pollable() = default;
  // True when it needs no more polling; must not throw. May do nothing while another thread is inside.
  virtual bool Poll() = 0;
};

class ProgressThread {
 public:
  ProgressThread();
  // Polls nothing any more once it returns.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Polls `pollable` until it says that it is done, and holds it until then. Thread-safe.
  void Watch(std::shared_ptr<Pollable> pollable);

 private:
  static constexpr std::chrono::microseconds kShortest{50}, kLongest{1000};

  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Pollable>> watched_;
  std::chrono::microseconds pause_ = kShortest;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace cairn
