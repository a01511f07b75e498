// A queue that does each transfer immediately, in the calling thread: the same work makes the same calls
// in the same order, and no thread is started for a few bytes.
#pragma once

#include <deque>

#include "ckpt/io/file_system.h"
#include "ckpt/io/io_queue.h"

namespace cairn {

class SerialQueue final : public IoQueue {
 public:
  void Write(File& file, uint64_t offset, std::span<const std::byte> bytes, uint64_t tag) override {
    done_.push_back({tag, file.WriteAt(offset, bytes)});
  }
  void Read(File& file, uint64_t offset, std::span<std::byte> bytes, uint64_t tag) override {
    done_.push_back({tag, file.ReadAt(offset, bytes)});
  }
  Completion Wait() override {
    Completion first = std::move(done_.front());
    done_.pop_front();
    return first;
  }
  void AwaitOne() override {}
  int in_flight() const override { return static_cast<int>(done_.size()); }
  int depth() const override { return 1; }
  const std::string& engine() const override { return engine_; }

 private:
  std::deque<Completion> done_;
  const std::string engine_ = "serial";
};

}  // namespace cairn
